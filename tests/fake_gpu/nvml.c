/* A stand-in for libnvidia-ml: what it says of the scenario's GPUs. A question that is missing here is refused. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "scenario.h"

#define API __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID_ARGUMENT = 2 };
enum { LEVEL_NODE = 40, LEVEL_SYSTEM = 50 };
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };

struct gpu {
    int index;
};

static struct gpu gpus[MAX_GPUS];

struct memory {
    unsigned long long total, free, used;
};

struct pci {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char address[32];
};

struct utilisation {
    unsigned gpu, memory;
};

static int refused(const char *call)
{
    for (int index = 0; index < scenario()->failure_count; index++)
        if (!strcmp(scenario()->failures[index].call, call))
            return scenario()->failures[index].code;
    return SUCCESS;
}

API int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    for (int index = 0; index < MAX_GPUS; index++)
        gpus[index].index = index;
    return refused(__func__);
}

API int nvmlShutdown(void)
{
    return SUCCESS;
}

API const char *nvmlErrorString(int code)
{
    (void)code;
    return "refused by the fake NVML";
}

static int text(char *to, unsigned size, const char *from)
{
    snprintf(to, size, "%s", from);
    return SUCCESS;
}

API int nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    return text(version, size, scenario()->driver);
}

API int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = scenario()->cuda;
    return SUCCESS;
}

API int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = (unsigned)scenario()->gpus;
    return refused(__func__);
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **gpu)
{
    *gpu = &gpus[index];
    return (int)index < scenario()->gpus ? SUCCESS : INVALID_ARGUMENT;
}

API int nvmlDeviceGetName(struct gpu *gpu, char *name, unsigned size)
{
    (void)gpu;
    return text(name, size, scenario()->name);
}

API int nvmlDeviceGetVbiosVersion(struct gpu *gpu, char *version, unsigned size)
{
    (void)gpu;
    return text(version, size, "98.02.00.00.00");
}

/* Questions with one number for an answer. */
#define NUMBER(name, answer)                                                                                           \
    API int name(struct gpu *gpu, unsigned *value)                                                                     \
    {                                                                                                                  \
        (void)gpu;                                                                                                     \
        *value = (unsigned)(answer);                                                                                   \
        return refused(__func__);                                                                                      \
    }

NUMBER(nvmlDeviceGetEnforcedPowerLimit, scenario()->power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, 600000)
NUMBER(nvmlDeviceGetPowerUsage, 31000)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, 5)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, 16)
NUMBER(nvmlDeviceGetPersistenceMode, 1)
NUMBER(nvmlDeviceGetComputeMode, 0)
NUMBER(nvmlDeviceGetVirtualizationMode, 0)
NUMBER(nvmlDeviceGetMinorNumber, gpu->index)

API int nvmlDeviceGetCurrentClocksEventReasons(struct gpu *gpu, unsigned long long *reasons)
{
    (void)gpu;
    *reasons = 1; /* idle */
    return SUCCESS;
}

API int nvmlDeviceGetClockInfo(struct gpu *gpu, int clock, unsigned *mhz)
{
    (void)gpu;
    *mhz = clock == 1 ? 180 : 405;
    return SUCCESS;
}

API int nvmlDeviceGetMaxClockInfo(struct gpu *gpu, int clock, unsigned *mhz)
{
    (void)gpu;
    (void)clock;
    *mhz = 2430;
    return SUCCESS;
}

API int nvmlDeviceGetTemperature(struct gpu *gpu, int sensor, unsigned *celsius)
{
    (void)gpu;
    (void)sensor;
    *celsius = 31;
    return SUCCESS;
}

static int two_modes(unsigned *now, unsigned *pending, unsigned mode)
{
    *now = *pending = mode;
    return SUCCESS;
}

API int nvmlDeviceGetEccMode(struct gpu *gpu, unsigned *now, unsigned *pending)
{
    (void)gpu;
    return two_modes(now, pending, 1);
}

API int nvmlDeviceGetMigMode(struct gpu *gpu, unsigned *now, unsigned *pending)
{
    (void)gpu;
    return two_modes(now, pending, 0);
}

API int nvmlDeviceGetCudaComputeCapability(struct gpu *gpu, int *major, int *minor)
{
    (void)gpu;
    *major = scenario()->capability_major;
    *minor = scenario()->capability_minor;
    return SUCCESS;
}

API int nvmlDeviceGetMemoryInfo(struct gpu *gpu, struct memory *memory)
{
    (void)gpu;
    const struct scenario *s = scenario();
    *memory = (struct memory){s->memory, s->free_memory, s->memory - s->free_memory};
    return SUCCESS;
}

API int nvmlDeviceGetBAR1MemoryInfo(struct gpu *gpu, struct memory *window)
{
    (void)gpu;
    const unsigned long long size = 131072 * MIB;
    *window = (struct memory){size, size, 0};
    return SUCCESS;
}

API int nvmlDeviceGetPciInfo_v3(struct gpu *gpu, struct pci *pci)
{
    memset(pci, 0, sizeof *pci);
    pci_address(gpu->index, pci->legacy, sizeof pci->legacy);
    snprintf(pci->address, sizeof pci->address, "0000%.12s", pci->legacy);
    return SUCCESS;
}

API int nvmlDeviceGetTotalEccErrors(struct gpu *gpu, int kind, int counter, unsigned long long *count)
{
    (void)gpu;
    (void)kind;
    (void)counter;
    *count = 0;
    return SUCCESS;
}

API int nvmlDeviceGetRemappedRows(struct gpu *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                  unsigned *failed)
{
    (void)gpu;
    *corrected = *uncorrected = *pending = *failed = 0;
    return SUCCESS;
}

API int nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *gpu, unsigned *count, void *processes)
{
    (void)gpu;
    (void)processes;
    *count = 0;
    return SUCCESS;
}

API int nvmlDeviceGetUtilizationRates(struct gpu *gpu, struct utilisation *load)
{
    (void)gpu;
    *load = (struct utilisation){0, 0};
    return SUCCESS;
}

API int nvmlDeviceGetMemoryAffinity(struct gpu *gpu, unsigned words, unsigned long *nodes, int scope)
{
    (void)scope;
    memset(nodes, 0, words * sizeof *nodes);
    nodes[0] = 1ul << numa_node_of(gpu->index);
    return refused(__func__);
}

API int nvmlDeviceGetTopologyCommonAncestor(struct gpu *one, struct gpu *other, int *level)
{
    *level = numa_node_of(one->index) == numa_node_of(other->index) ? LEVEL_NODE : LEVEL_SYSTEM;
    return SUCCESS;
}

API int nvmlDeviceGetP2PStatus(struct gpu *one, struct gpu *other, int kind, int *status)
{
    (void)one;
    (void)other;
    (void)kind;
    *status = scenario()->peer_access ? P2P_OK : P2P_NOT_SUPPORTED;
    return SUCCESS;
}
