/* libnvidia-ml.so.1: what Sublet asks through pynvml, and TensorFlow and XLA for themselves.
 *
 * The machine is described anew at every call, so a test can change it while a program looks. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "ledger.h"

enum {
    SUCCESS = 0,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    FUNCTION_NOT_FOUND = 13,
};

/* A handle has to outlive the next description, so it is a place in the machine and no pointer. */
static void *to_handle(const Card *card) {
    return (void *)(uintptr_t)(((card->gpu + 1) << 8) | (card->slot + 1));
}

static int find(int gpu, int slot, const Card **found) {
    const Machine *m = read_machine();
    for (int i = 0; i < m->count; i++)
        if (m->cards[i].gpu == gpu && m->cards[i].slot == slot) {
            *found = &m->cards[i];
            return m->cards[i].error;
        }
    return NOT_FOUND;
}

static int find_handle(void *handle, const Card **found) {
    uintptr_t place = (uintptr_t)handle;
    return find((int)(place >> 8) - 1, (int)(place & 0xff) - 1, found);
}

#define CARD_OF(handle)                        \
    const Card *card;                          \
    int failed = find_handle((handle), &card); \
    if (failed) return failed

int nvmlInitWithFlags(unsigned flags) {
    const Machine *m = read_machine();
    return m->described ? m->init : DRIVER_NOT_LOADED;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) { return "an error of the stand-in"; }

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    snprintf(out, size, "%s", read_machine()->driver);
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)read_machine()->gpus;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    const Card *card;
    int failed = find((int)index, -1, &card);
    if (failed) return failed;
    *handle = to_handle(card);
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    const Machine *m = read_machine();
    for (int i = 0; i < m->count; i++)
        if (!strcmp(m->cards[i].uuid, uuid)) {
            *handle = to_handle(&m->cards[i]);
            return m->cards[i].error;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetName(void *handle, char *out, unsigned size) {
    CARD_OF(handle);
    snprintf(out, size, "%s", card->name);
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *out, unsigned size) {
    CARD_OF(handle);
    snprintf(out, size, "%s", card->uuid);
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    CARD_OF(handle);
    if (!card->major) return NOT_SUPPORTED;
    *major = card->major;
    *minor = card->minor;
    return SUCCESS;
}

/* Beside what the description makes up, what programs hold through the stand-in of CUDA. */
static u64 used_of(const Card *card) {
    Holding held[HOLDERS];
    u64 bytes = card->used;
    for (int i = holdings(card, held); i--;) bytes += held[i].bytes;
    return bytes;
}

static u64 free_of(const Card *card) { return card->total - card->reserved - used_of(card); }

int nvmlDeviceGetMemoryInfo(void *handle, u64 *out) {
    CARD_OF(handle);
    out[0] = card->total;
    out[1] = free_of(card);
    out[2] = card->total - out[1];
    return SUCCESS;
}

typedef struct {
    unsigned version;
    u64 total, reserved, free, used;
} MemoryV2;

int nvmlDeviceGetMemoryInfo_v2(void *handle, MemoryV2 *out) {
    CARD_OF(handle);
    if (!card->memory_v2) return FUNCTION_NOT_FOUND;
    if (out->version != (sizeof *out | 2u << 24)) return INVALID_ARGUMENT;
    out->total = card->total;
    out->reserved = card->reserved;
    out->free = free_of(card);
    out->used = used_of(card);
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    CARD_OF(handle);
    /* Only cards of compute capability 8 and later know of MIG. */
    if (card->major < 8) return NOT_SUPPORTED;
    *current = *pending = (unsigned)card->mig;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    CARD_OF(handle);
    *count = 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned slot, void **instance) {
    CARD_OF(handle);
    failed = find(card->gpu, (int)slot, &card);
    if (failed) return failed;
    *instance = to_handle(card);
    return SUCCESS;
}

typedef struct {
    unsigned pid;
    u64 bytes;
    unsigned gpu_instance, compute_instance;
} ProcessInfo;

static int list(void *handle, char kind, unsigned *count, ProcessInfo *out) {
    CARD_OF(handle);
    if (card->list_error) return card->list_error;
    ProcessInfo all[PROCESSES + HOLDERS];
    Holding held[HOLDERS];
    unsigned found = 0, room = out ? *count : 0;
    for (int i = 0; i < card->count; i++) {
        const Process *p = &card->processes[i];
        if (p->kind == kind) all[found++] = (ProcessInfo){.pid = p->pid, .bytes = p->bytes};
    }
    int holders = kind == 'C' ? holdings(card, held) : 0;
    for (int i = 0; i < holders; i++)
        all[found++] = (ProcessInfo){.pid = (unsigned)held[i].pid, .bytes = held[i].bytes};
    for (unsigned i = 0; i < found && i < room; i++) out[i] = all[i];
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *out) {
    return list(handle, 'C', count, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *out) {
    return list(handle, 'G', count, out);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *out) {
    return list(handle, 'M', count, out);
}

/* TensorFlow looks a card up by its bus, whose number is the index and 1. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) {
    unsigned number = 0;
    sscanf(bus, "%*[^:]:%x", &number);
    return nvmlDeviceGetHandleByIndex_v2(number - 1, handle);
}

int nvmlDeviceGetCurrPcieLinkGeneration(void *handle, unsigned *out) { return *out = 4, SUCCESS; }

int nvmlDeviceGetCurrPcieLinkWidth(void *handle, unsigned *out) { return *out = 16, SUCCESS; }

int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *out) { return NOT_SUPPORTED; }

int nvmlDeviceGetNvLinkCapability(void *handle, unsigned link, int which, unsigned *out) { return NOT_SUPPORTED; }

int nvmlDeviceGetGpuFabricInfoV(void *handle, void *out) { return NOT_SUPPORTED; }
