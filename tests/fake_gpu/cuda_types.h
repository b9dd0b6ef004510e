/* The few types and numbers of the CUDA driver's ABI that the probe uses; cuda.h itself may not be redistributed. */
#ifndef FAKE_GPU_CUDA_TYPES_H
#define FAKE_GPU_CUDA_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uintptr_t CUdeviceptr;
typedef uint64_t CUmemGenericAllocationHandle;

enum {
    CUDA_SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    PEER_ACCESS_UNSUPPORTED = 217,
    NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    NOT_SUPPORTED = 801,
};

enum { HANDLE_POSIX_FD = 1, HANDLE_FABRIC = 8 };

typedef struct {
    int type, id;
} CUmemLocation;

typedef struct {
    int type, requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType, gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} CUmemAllocationProp;

typedef struct {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;

typedef struct {
    unsigned numDevices;
    size_t size;
    unsigned long long handleTypes, flags;
} CUmulticastObjectProp;

typedef struct {
    char reserved[64];
} CUipcMemHandle;

#endif
