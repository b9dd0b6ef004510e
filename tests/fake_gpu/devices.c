/* Start of the driver, devices, contexts, its log, and the way by which bindings find functions. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

struct context contexts[MAX_GPUS];
struct context *current;
static char last_error[160];

static int applies(const struct failure *failure, int handle_type, int rdma, size_t size)
{
    switch (failure->only) {
    case ONLY_FABRIC:
        return handle_type == HANDLE_FABRIC;
    case ONLY_RDMA:
        return rdma;
    case ONLY_WORKSPACE:
        return size > GRANULE;
    default:
        return 1;
    }
}

CUresult injected(const char *call, int handle_type, int rdma, size_t size)
{
    for (int index = 0; index < scenario()->failure_count; index++) {
        const struct failure *failure = &scenario()->failures[index];
        if (strcmp(failure->call, call) || !applies(failure, handle_type, rdma, size))
            continue;
        while (failure->code == HANG)
            pause();
        snprintf(last_error, sizeof last_error, "fake driver: %s answers %d", call, failure->code);
        return failure->code;
    }
    return CUDA_SUCCESS;
}

API CUresult cuInit(unsigned flags)
{
    (void)flags;
    ENTER();
    for (int gpu = 0; gpu < scenario()->gpus; gpu++)
        contexts[gpu].gpu = gpu;
    return scenario()->gpus ? CUDA_SUCCESS : NO_DEVICE;
}

API CUresult cuDriverGetVersion(int *version)
{
    ENTER();
    *version = scenario()->cuda;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetCount(int *count)
{
    ENTER();
    *count = scenario()->gpus;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER();
    *device = ordinal;
    return ordinal >= 0 && ordinal < scenario()->gpus ? CUDA_SUCCESS : INVALID_DEVICE;
}

API CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    (void)device;
    ENTER();
    snprintf(name, (size_t)length, "%s", scenario()->name);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetPCIBusId(char *address, int length, CUdevice device)
{
    ENTER();
    pci_address(device, address, (size_t)length);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    (void)device;
    ENTER();
    *bytes = scenario()->memory;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    (void)device;
    ENTER();
    const struct scenario *s = scenario();
    const int answers[][2] = {
        {16, 188},                 /* multiprocessors */
        {18, 0},                   /* integrated */
        {32, 1},                   /* ECC */
        {38, 128 << 20},           /* second-level cache, bytes */
        {75, s->capability_major}, /* compute capability */
        {76, s->capability_minor}, /* its minor part */
        {102, 1},                  /* virtual memory management */
        {103, 1},                  /* POSIX descriptors */
        {110, 1},                  /* RDMA with virtual memory */
        {116, 1},                  /* RDMA */
        {125, 1},                  /* IPC events */
        {128, s->fabric},          /* fabric handles */
        {132, s->multicast},       /* multicast */
        {141, 1},                  /* virtual memory on host NUMA nodes */
    };
    for (size_t index = 0; index < sizeof answers / sizeof *answers; index++)
        if (answers[index][0] == attribute) {
            *value = answers[index][1];
            return CUDA_SUCCESS;
        }
    return INVALID_VALUE;
}

API CUresult cuDevicePrimaryCtxRetain(struct context **context, CUdevice device)
{
    ENTER();
    *context = &contexts[device];
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetCurrent(struct context *context)
{
    ENTER();
    current = context;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSynchronize(void)
{
    ENTER_WITH_CONTEXT();
    return CUDA_SUCCESS;
}

API CUresult cuDeviceCanAccessPeer(int *able, CUdevice device, CUdevice peer)
{
    ENTER();
    *able = scenario()->peer_access && device != peer;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice one, CUdevice other)
{
    ENTER();
    const int access_supported = 2, performance_rank = 1;
    int apart = numa_node_of(one) != numa_node_of(other);
    *value = attribute == access_supported ? scenario()->peer_access : attribute == performance_rank ? apart : 0;
    return CUDA_SUCCESS;
}

API CUresult cuCtxEnablePeerAccess(struct context *peer, unsigned flags)
{
    (void)flags;
    ENTER_WITH_CONTEXT();
    if (!scenario()->peer_access)
        return PEER_ACCESS_UNSUPPORTED;
    if (current->peers & 1u << peer->gpu)
        return PEER_ACCESS_ALREADY_ENABLED;
    current->peers |= 1u << peer->gpu;
    return CUDA_SUCCESS;
}

API CUresult cuLogsDumpToMemory(unsigned *iterator, char *buffer, size_t *size, unsigned flags)
{
    (void)iterator;
    (void)flags;
    snprintf(buffer, *size, "%s", last_error);
    *size = strlen(buffer);
    last_error[0] = 0;
    return CUDA_SUCCESS;
}

/* CUDA level from which a function exists; all others are older than any driver that is played. */
static const struct {
    const char *name;
    int since;
} newer[] = {
    {"cuMulticastCreate", 12010},
    {"cuMulticastGetGranularity", 12010},
    {"cuLogsDumpToMemory", 12090},
};

API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    (void)version;
    (void)flags;
    const int found = 0, missing = 1, too_old = 2;
    Dl_info here;
    *function = NULL;
    int answer = missing;
    if (!strcmp(name, "cuGetProcAddress")) {
        *function = (void *)cuGetProcAddress_v2;
    } else if (dladdr((void *)cuInit, &here)) {
        void *self = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
        *function = dlsym(self, name);
        dlclose(self);
    }
    if (*function)
        answer = found;
    for (size_t index = 0; index < sizeof newer / sizeof *newer; index++)
        if (!strcmp(newer[index].name, name) && scenario()->cuda < newer[index].since) {
            *function = NULL;
            answer = too_old;
        }
    if (status)
        *status = answer;
    return *function ? CUDA_SUCCESS : NOT_FOUND;
}
