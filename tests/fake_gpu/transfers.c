/* Copies, fills and the probe's two kernels, on memory of this and of other GPUs, as well or badly as the scenario
 * says. Large pieces are only touched at both ends, so that a host of eight GPUs fits a small machine: fill, copy
 * and check agree on which words those are.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "driver.h"

#define EDGE ((size_t)128 << 10)

/* The kernels of the probe, by name: the code itself is for GPUs only. */
enum kernel { FILL = 1, CHECK = 2 };

struct span {
    size_t start, end;
};

static int spans_of(size_t size, struct span spans[2])
{
    spans[0] = (struct span){0, size};
    if (size <= 2 * EDGE)
        return 1;
    spans[0].end = EDGE;
    spans[1] = (struct span){size - EDGE, size};
    return 2;
}

/* Where bytes at an address of a GPU end up when `gpu` uses it, and whether they arrive whole. */
struct place {
    unsigned char *bytes;
    enum transfer how;
};

static CUresult place_of(CUdeviceptr address, size_t size, int gpu, enum transfer between, struct place *place)
{
    struct mapping *mapping = mapping_at(address, size);
    if (!mapping)
        return ILLEGAL_ADDRESS;
    *place = (struct place){(unsigned char *)address, GOOD};
    if (mapping->allocation->gpu == gpu)
        return CUDA_SUCCESS;
    place->how = between;
    if (between == MIRROR) {
        if (!mapping->shadow)
            mapping->shadow = mmap(NULL, mapping->size, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        place->bytes = mapping->shadow + (address - mapping->base);
    }
    return CUDA_SUCCESS;
}

static void spoil(struct place place, size_t size)
{
    if (place.how == CORRUPT && size >= 4096)
        place.bytes[size / 4096 * 4096 - 100] ^= 0x5A;
}

API CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t size)
{
    ENTER_WITH_CONTEXT();
    if (!mapping_at(to, size))
        return INVALID_VALUE;
    memcpy((void *)to, from, size);
    return CUDA_SUCCESS;
}

API CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t size)
{
    ENTER_WITH_CONTEXT();
    if (!mapping_at(from, size))
        return INVALID_VALUE;
    memcpy(to, (void *)from, size);
    return CUDA_SUCCESS;
}

API CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count)
{
    ENTER_WITH_CONTEXT();
    struct span spans[2];
    if (!mapping_at(to, count))
        return INVALID_VALUE;
    for (int index = spans_of(count, spans) - 1; index >= 0; index--)
        memset((unsigned char *)to + spans[index].start, value, spans[index].end - spans[index].start);
    return CUDA_SUCCESS;
}

API CUresult cuMemsetD32(CUdeviceptr to, unsigned value, size_t count)
{
    ENTER_WITH_CONTEXT();
    if (!mapping_at(to, 4 * count))
        return INVALID_VALUE;
    for (size_t index = 0; index < count; index++)
        ((unsigned *)to)[index] = value;
    return CUDA_SUCCESS;
}

static CUresult copy(CUdeviceptr to, const struct context *owner, CUdeviceptr from, const struct context *reader,
                     size_t size)
{
    struct span spans[2];
    struct place target, source;
    int direct = reader->peers & 1u << owner->gpu;
    if (place_of(to, size, reader->gpu, direct ? scenario()->copy : GOOD, &target) ||
        place_of(from, size, reader->gpu, GOOD, &source))
        return INVALID_VALUE;
    if (target.how == LOST)
        return CUDA_SUCCESS;
    for (int index = spans_of(size, spans) - 1; index >= 0; index--)
        memcpy(target.bytes + spans[index].start, source.bytes + spans[index].start,
               spans[index].end - spans[index].start);
    spoil(target, size);
    return CUDA_SUCCESS;
}

API CUresult cuMemcpyPeer(CUdeviceptr to, struct context *owner, CUdeviceptr from, struct context *reader, size_t size)
{
    ENTER_WITH_CONTEXT();
    return copy(to, owner, from, reader, size);
}

API CUresult cuMemcpyPeerAsync(CUdeviceptr to, struct context *owner, CUdeviceptr from, struct context *reader,
                               size_t size, void *stream)
{
    (void)stream;
    ENTER_WITH_CONTEXT();
    return copy(to, owner, from, reader, size);
}

API CUresult cuModuleLoadData(void **module, const void *image)
{
    ENTER_WITH_CONTEXT();
    *module = (void *)image;
    return strstr(image, ".entry fill(") && strstr(image, ".entry check(") ? CUDA_SUCCESS : INVALID_VALUE;
}

API CUresult cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)module;
    ENTER();
    enum kernel kernel = !strcmp(name, "fill") ? FILL : !strcmp(name, "check") ? CHECK : 0;
    *function = (void *)(uintptr_t)kernel;
    return kernel ? CUDA_SUCCESS : NOT_FOUND;
}

static void fill(struct place place, size_t size, uint32_t seed)
{
    struct span spans[2];
    if (place.how == LOST)
        return;
    for (int index = spans_of(size, spans) - 1; index >= 0; index--)
        for (size_t word = spans[index].start / 4; word < spans[index].end / 4; word++)
            ((uint32_t *)place.bytes)[word] = (uint32_t)word * 2654435761u ^ seed;
    spoil(place, size);
}

static uint32_t check(struct place place, size_t size, uint32_t seed)
{
    struct span spans[2];
    uint32_t wrong = 0;
    for (int index = spans_of(size, spans) - 1; index >= 0; index--)
        for (size_t word = spans[index].start / 4; word < spans[index].end / 4; word++)
            wrong += ((uint32_t *)place.bytes)[word] != ((uint32_t)word * 2654435761u ^ seed);
    return wrong;
}

API CUresult cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **parameters,
                            void **extra)
{
    (void)grid_y, (void)grid_z, (void)block_y, (void)block_z, (void)shared, (void)stream, (void)extra;
    ENTER_WITH_CONTEXT();
    CUdeviceptr base = *(uint64_t *)parameters[0], counter = *(uint64_t *)parameters[3];
    size_t size = (size_t)*(uint32_t *)parameters[1] * 4;
    uint32_t seed = *(uint32_t *)parameters[2];
    struct place place;
    struct mapping *mapping = mapping_at(base, size);
    if (!grid_x || !block_x || !mapping)
        return INVALID_VALUE;
    int owner = mapping->allocation->gpu;
    if (owner != current->gpu && !(current->peers & 1u << owner))
        return ILLEGAL_ADDRESS;
    if (place_of(base, size, current->gpu, scenario()->window, &place))
        return ILLEGAL_ADDRESS;
    if ((uintptr_t)function == FILL)
        fill(place, size, seed);
    else if (mapping_at(counter, 4))
        *(uint32_t *)counter += check(place, size, seed);
    else
        return ILLEGAL_ADDRESS;
    return CUDA_SUCCESS;
}
