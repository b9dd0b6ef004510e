/* What the stand-in plays, read once from the file that FAKE_GPU_SCENARIO names. Shared by both libraries. */
#ifndef FAKE_GPU_SCENARIO_H
#define FAKE_GPU_SCENARIO_H

#include <stddef.h>

#define MAX_GPUS 16
#define MAX_FAILURES 16
#define MIB ((size_t)1 << 20)

/* How bytes travel to another GPU's memory. */
enum transfer {
    GOOD,
    CORRUPT, /* one word in each piece arrives wrong */
    LOST,    /* nothing arrives, and the call says success */
    MIRROR   /* nothing arrives, and the writer reads its own bytes back through its window */
};

/* What a failure or a hang is limited to: a handle type, the RDMA flag, more than one granule. */
enum only { ALWAYS, ONLY_FABRIC, ONLY_RDMA, ONLY_WORKSPACE };

struct failure {
    char call[64];
    int code; /* CUresult; HANG: the call never comes back */
    enum only only;
};

#define HANG (-1)

struct scenario {
    char name[96], driver[32];
    int gpus, numa_nodes, capability_major, capability_minor, cuda;
    int fabric, multicast, peer_access;
    size_t memory, free_memory;
    unsigned power_limit_mw;
    enum transfer copy, window;
    struct failure failures[MAX_FAILURES];
    int failure_count;
};

/* The scenario. Lines are `key value`, as `take` in scenario.c knows them; a missing file or a word that nobody knows ends the process. */
const struct scenario *scenario(void);

/* NUMA node of a GPU: the nodes get blocks of equal size. */
int numa_node_of(int gpu);
/* Its PCI address, e.g. 0000:81:00.0. */
void pci_address(int gpu, char *text, size_t size);

#endif
