/* What the parts of the stand-in for libcuda share. */
#ifndef FAKE_GPU_DRIVER_H
#define FAKE_GPU_DRIVER_H

#include "cuda_types.h"
#include "memory.h"
#include "scenario.h"

#define API __attribute__((visibility("default")))

/* The primary context of a GPU: only which one it is, and whose memory it may touch. */
struct context {
    int gpu;
    unsigned peers; /* bit N: access to GPU N is enabled */
};

extern struct context contexts[MAX_GPUS];
extern struct context *current;

/* What the scenario wants a call to answer; a call that shall hang never comes back from here. */
CUresult injected(const char *call, int handle_type, int rdma, size_t size);

/* Fail as the scenario says, or because no context is current. */
#define ENTER()                                                                                                        \
    do {                                                                                                               \
        CUresult code_ = injected(__func__, 0, 0, 0);                                                                  \
        if (code_)                                                                                                     \
            return code_;                                                                                              \
    } while (0)
#define ENTER_WITH_CONTEXT()                                                                                           \
    ENTER();                                                                                                           \
    if (!current)                                                                                                      \
    return INVALID_CONTEXT

#endif
