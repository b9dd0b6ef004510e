/* Allocation, mapping and sharing of memory; multicast. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

/* What an IPC handle carries: where the owner's descriptor is. */
struct ipc_handle {
    int pid, fd, gpu;
};

API CUresult cuMemGetInfo(size_t *free_bytes, size_t *total)
{
    ENTER_WITH_CONTEXT();
    *free_bytes = free_memory(current->gpu);
    *total = scenario()->memory;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties, int option)
{
    (void)option;
    CUresult code = injected(__func__, properties->requestedHandleTypes, properties->allocFlags.gpuDirectRDMACapable, 0);
    *granularity = GRANULE;
    return code;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                         unsigned long long flags)
{
    (void)flags;
    int kind = properties->requestedHandleTypes;
    CUresult code = injected(__func__, kind, properties->allocFlags.gpuDirectRDMACapable, size);
    if (code)
        return code;
    if (!size || size % GRANULE)
        return INVALID_VALUE;
    if (kind == HANDLE_FABRIC && !scenario()->fabric)
        return NOT_SUPPORTED;
    struct allocation *made = allocate(properties->location.id, size, kind);
    *handle = (uintptr_t)made;
    return made ? CUDA_SUCCESS : OUT_OF_MEMORY;
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    ENTER();
    release((struct allocation *)(uintptr_t)handle);
    return CUDA_SUCCESS;
}

API CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted,
                                 unsigned long long flags)
{
    (void)alignment;
    (void)wanted;
    (void)flags;
    ENTER_WITH_CONTEXT();
    *address = reserve(size);
    return *address ? CUDA_SUCCESS : OUT_OF_MEMORY;
}

API CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    ENTER();
    unreserve(address, size);
    return CUDA_SUCCESS;
}

API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long flags)
{
    (void)flags;
    ENTER();
    return !offset && !map(address, size, (struct allocation *)(uintptr_t)handle) ? CUDA_SUCCESS : INVALID_VALUE;
}

API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count)
{
    (void)access;
    ENTER();
    return count && !grant(address, size) ? CUDA_SUCCESS : INVALID_VALUE;
}

API CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    (void)size;
    ENTER();
    return unmap(address) ? INVALID_VALUE : CUDA_SUCCESS;
}

API CUresult cuMemExportToShareableHandle(void *exported, CUmemGenericAllocationHandle handle, int kind,
                                          unsigned long long flags)
{
    (void)flags;
    CUresult code = injected(__func__, kind, 0, 0);
    const struct allocation *allocation = (struct allocation *)(uintptr_t)handle;
    if (code || kind != HANDLE_POSIX_FD || allocation->handle_type != kind)
        return code ? code : INVALID_VALUE;
    *(int *)exported = fcntl(allocation->fd, F_DUPFD_CLOEXEC, 0);
    return CUDA_SUCCESS;
}

API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *exported, int kind)
{
    CUresult code = injected(__func__, kind, 0, 0);
    if (code || kind != HANDLE_POSIX_FD)
        return code ? code : INVALID_VALUE;
    struct allocation *made = adopt(current->gpu, fcntl((int)(intptr_t)exported, F_DUPFD_CLOEXEC, 0));
    *handle = (uintptr_t)made;
    return made ? CUDA_SUCCESS : INVALID_VALUE;
}

/* Reserve, map and open one allocation; 0 when that fails. */
static CUdeviceptr show(struct allocation *allocation)
{
    CUdeviceptr base = allocation ? reserve(allocation->size) : 0;
    if (!base || map(base, allocation->size, allocation) || grant(base, allocation->size))
        return 0;
    return base;
}

static CUresult hide(CUdeviceptr base)
{
    struct mapping *mapping = mapping_at(base, 1);
    if (!mapping || mapping->base != base)
        return INVALID_VALUE;
    struct allocation *allocation = mapping->allocation;
    size_t size = mapping->size;
    unmap(base);
    unreserve(base, size);
    release(allocation);
    return CUDA_SUCCESS;
}

API CUresult cuMemAlloc(CUdeviceptr *address, size_t size)
{
    ENTER_WITH_CONTEXT();
    *address = show(allocate(current->gpu, (size + 4095) / 4096 * 4096, 0));
    return *address ? CUDA_SUCCESS : OUT_OF_MEMORY;
}

API CUresult cuMemFree(CUdeviceptr address)
{
    ENTER();
    return hide(address);
}

API CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    ENTER();
    const struct mapping *mapping = mapping_at(address, 1);
    if (!mapping)
        return INVALID_VALUE;
    const struct ipc_handle place = {getpid(), mapping->allocation->fd, mapping->allocation->gpu};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &place, sizeof place);
    return CUDA_SUCCESS;
}

API CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    (void)flags;
    ENTER_WITH_CONTEXT();
    struct ipc_handle place;
    char path[64];
    memcpy(&place, &handle, sizeof place);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", place.pid, place.fd);
    *address = show(adopt(place.gpu, open(path, O_RDWR | O_CLOEXEC)));
    return *address ? CUDA_SUCCESS : INVALID_VALUE;
}

API CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    ENTER();
    return hide(address);
}

API CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *properties, int option)
{
    (void)properties;
    (void)option;
    ENTER();
    *granularity = GRANULE;
    return scenario()->multicast ? CUDA_SUCCESS : NOT_SUPPORTED;
}

/* On a shared host the real call can take GPUs away from everybody: nobody may reach it unasked. */
API CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties)
{
    (void)handle;
    (void)properties;
    fputs("fake GPU: cuMulticastCreate was called\n", stderr);
    abort();
}
