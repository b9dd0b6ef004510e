/* "GPU memory": anonymous files, so that descriptors and other processes reach it as they reach the real one. */
#ifndef FAKE_GPU_MEMORY_H
#define FAKE_GPU_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#define GRANULE ((size_t)2 << 20)

/* A piece of one GPU's memory. */
struct allocation {
    int fd, gpu, handle_type;
    size_t size;
};

/* A range of this process's addresses that shows an allocation; `shadow` is what a lying window shows its writer. */
struct mapping {
    uintptr_t base;
    size_t size;
    struct allocation *allocation;
    unsigned char *shadow;
};

/* NULL when the scenario's free memory does not hold it. */
struct allocation *allocate(int gpu, size_t size, int handle_type);
/* An allocation that another process made; takes the descriptor. NULL when it is no such memory. */
struct allocation *adopt(int gpu, int fd);
void release(struct allocation *allocation);
size_t free_memory(int gpu);

/* Addresses without memory behind them; 0 when there are none. */
uintptr_t reserve(size_t size);
void unreserve(uintptr_t base, size_t size);
/* Put an allocation at reserved addresses; not yet accessible. Returns 0 on success. */
int map(uintptr_t base, size_t size, struct allocation *allocation);
int grant(uintptr_t base, size_t size);
int unmap(uintptr_t base);
/* The mapping that holds `size` bytes at `address`, or NULL. */
struct mapping *mapping_at(uintptr_t address, size_t size);

#endif
