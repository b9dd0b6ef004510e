#include "scenario.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The probe looks for this symbol and marks its record; no real driver library has it. */
__attribute__((visibility("default"))) int blackwell_stacks_simulated_driver = 1;

/* A PCIe host with the cards that this project is for; a scenario changes what it is about. */
static struct scenario played = {
    .name = "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    .driver = "580.95.05",
    .gpus = 2,
    .numa_nodes = 2,
    .capability_major = 12,
    .capability_minor = 0,
    .cuda = 13000,
    .peer_access = 1,
    .memory = 97887 * MIB,
    .free_memory = 97000 * MIB,
    .power_limit_mw = 600000,
};

static void die(const char *what, const char *line)
{
    fprintf(stderr, "fake GPU: %s: %s\n", what, line);
    abort();
}

static int word_of(const char *word, const char *const *words, const char *line)
{
    for (int index = 0; words[index]; index++)
        if (!strcmp(word, words[index]))
            return index;
    die("no such word", line);
    return 0;
}

static void take_failure(const char *value, int hangs, const char *line)
{
    static const char *const limits[] = {"always", "fabric", "rdma", "workspace", NULL};
    char only[32] = "always";
    if (played.failure_count == MAX_FAILURES)
        die("too many failures", line);
    struct failure *failure = &played.failures[played.failure_count++];
    int found = hangs ? sscanf(value, "%63s %31s", failure->call, only)
                      : sscanf(value, "%63s %d %31s", failure->call, &failure->code, only);
    if (found < (hangs ? 1 : 2))
        die("a failure needs a call and a code", line);
    if (hangs)
        failure->code = HANG;
    failure->only = (enum only)word_of(only, limits, line);
}

static void take(const char *key, const char *value, const char *line)
{
    static const char *const transfers[] = {"good", "corrupt", "lost", "mirror", NULL};
    static const char *const answers[] = {"no", "yes", NULL};
    if (!strcmp(key, "name"))
        snprintf(played.name, sizeof played.name, "%s", value);
    else if (!strcmp(key, "driver"))
        snprintf(played.driver, sizeof played.driver, "%s", value);
    else if (!strcmp(key, "gpus"))
        played.gpus = atoi(value);
    else if (!strcmp(key, "numa-nodes"))
        played.numa_nodes = atoi(value);
    else if (!strcmp(key, "capability"))
        sscanf(value, "%d.%d", &played.capability_major, &played.capability_minor);
    else if (!strcmp(key, "cuda"))
        played.cuda = atoi(value);
    else if (!strcmp(key, "memory-mib"))
        played.memory = strtoull(value, NULL, 10) * MIB;
    else if (!strcmp(key, "free-mib"))
        played.free_memory = strtoull(value, NULL, 10) * MIB;
    else if (!strcmp(key, "power-limit-w"))
        played.power_limit_mw = 1000 * (unsigned)atoi(value);
    else if (!strcmp(key, "fabric-attribute"))
        played.fabric = word_of(value, answers, line);
    else if (!strcmp(key, "multicast-attribute"))
        played.multicast = word_of(value, answers, line);
    else if (!strcmp(key, "peer-access"))
        played.peer_access = word_of(value, answers, line);
    else if (!strcmp(key, "copy"))
        played.copy = (enum transfer)word_of(value, transfers, line);
    else if (!strcmp(key, "window"))
        played.window = (enum transfer)word_of(value, transfers, line);
    else if (!strcmp(key, "fail") || !strcmp(key, "hang"))
        take_failure(value, key[0] == 'h', line);
    else
        die("no such key", line);
}

static void read_file(void)
{
    const char *path = getenv("FAKE_GPU_SCENARIO");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file)
        die("FAKE_GPU_SCENARIO names no file", path ? path : "it is not set");
    char line[256];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "#\n")] = 0;
        char *key = strtok(line, " "), *value = strtok(NULL, "");
        if (key)
            take(key, value ? value : "", key);
    }
    fclose(file);
    if (played.gpus < 0 || played.gpus > MAX_GPUS || played.numa_nodes < 1)
        die("a number is out of range", path);
}

const struct scenario *scenario(void)
{
    static int known;
    if (!known)
        read_file();
    known = 1;
    return &played;
}

int numa_node_of(int gpu)
{
    return gpu * scenario()->numa_nodes / (scenario()->gpus ? scenario()->gpus : 1);
}

void pci_address(int gpu, char *text, size_t size)
{
    snprintf(text, size, "0000:%02X:00.0", (unsigned)(numa_node_of(gpu) * 0x80 + gpu + 1) & 0xFF);
}
