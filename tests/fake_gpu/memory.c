#define _GNU_SOURCE
#include "memory.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "scenario.h"

#define MAX_MAPPINGS 256

static size_t used[MAX_GPUS];
static struct mapping mappings[MAX_MAPPINGS];

size_t free_memory(int gpu)
{
    size_t free_bytes = scenario()->free_memory;
    return used[gpu] < free_bytes ? free_bytes - used[gpu] : 0;
}

struct allocation *allocate(int gpu, size_t size, int handle_type)
{
    if (size > free_memory(gpu))
        return NULL;
    int fd = memfd_create("fake-gpu-memory", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)size))
        abort();
    struct allocation *made = calloc(1, sizeof *made);
    *made = (struct allocation){.fd = fd, .gpu = gpu, .size = size, .handle_type = handle_type};
    used[gpu] += size;
    return made;
}

struct allocation *adopt(int gpu, int fd)
{
    struct stat facts;
    if (fd < 0 || fstat(fd, &facts) || !facts.st_size)
        return NULL;
    struct allocation *made = calloc(1, sizeof *made);
    *made = (struct allocation){.fd = fd, .gpu = gpu, .size = (size_t)facts.st_size};
    used[gpu] += made->size;
    return made;
}

void release(struct allocation *allocation)
{
    used[allocation->gpu] -= allocation->size;
    close(allocation->fd);
    free(allocation);
}

uintptr_t reserve(size_t size)
{
    void *base = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return base == MAP_FAILED ? 0 : (uintptr_t)base;
}

void unreserve(uintptr_t base, size_t size)
{
    munmap((void *)base, size);
}

int map(uintptr_t base, size_t size, struct allocation *allocation)
{
    if (size > allocation->size)
        return -1;
    for (int index = 0; index < MAX_MAPPINGS; index++) {
        struct mapping *free_slot = &mappings[index];
        if (free_slot->base)
            continue;
        if (mmap((void *)base, size, PROT_NONE, MAP_SHARED | MAP_FIXED, allocation->fd, 0) == MAP_FAILED)
            return -1;
        *free_slot = (struct mapping){.base = base, .size = size, .allocation = allocation};
        return 0;
    }
    return -1;
}

int grant(uintptr_t base, size_t size)
{
    return mapping_at(base, size) ? mprotect((void *)base, size, PROT_READ | PROT_WRITE) : -1;
}

int unmap(uintptr_t base)
{
    struct mapping *mapping = mapping_at(base, 1);
    if (!mapping || mapping->base != base)
        return -1;
    if (mapping->shadow)
        munmap(mapping->shadow, mapping->size);
    mmap((void *)base, mapping->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    mapping->base = 0;
    return 0;
}

struct mapping *mapping_at(uintptr_t address, size_t size)
{
    for (int index = 0; index < MAX_MAPPINGS; index++) {
        struct mapping *mapping = &mappings[index];
        if (mapping->base && address >= mapping->base && address + size <= mapping->base + mapping->size)
            return mapping;
    }
    return NULL;
}
