/* A stand-in for NVIDIA's libnvidia-ml.so.1: the calls that Sublet makes through pynvml, and no more.
 *
 * What it reports is in the text file named by SUBLET_STANDIN_NVML, read again at every call, so a
 * test can change the machine while a program looks at it. One fact per line; a line belongs to
 * the last gpu or instance above it:
 *
 *   driver 570.86.10            init 0              (what nvmlInit returns)
 *   gpu GPU-1234                instance 0 MIG-5678 (its slot, then its UUID)
 *   name NVIDIA A100            memory 42949672960 536870912 1048576   (total, reserved, used)
 *   compute 8 0                 mig 1               (MIG mode is on)
 *   error 15                    (what every call on it returns)
 *   list_error 4                (what the process lists return)
 *   memory_v2 0                 (an older driver: no second version of the memory call)
 *   process C 4242 1073741824   (C compute, G graphics, M a client of MPS; -1: not available)
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SUCCESS = 0,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    FUNCTION_NOT_FOUND = 13,
};
enum { UNITS = 32, PROCESSES = 64, TEXT = 96 };

typedef unsigned long long u64;

typedef struct {
    char kind;
    unsigned pid;
    u64 bytes;
} Process;

/* A GPU or an instance of one; `slot` is -1 for a GPU. */
typedef struct {
    int gpu, slot;
    char uuid[TEXT], name[TEXT];
    u64 total, reserved, used;
    int major, minor, mig, error, list_error, memory_v2, count;
    Process processes[PROCESSES];
} Unit;

typedef struct {
    char driver[TEXT];
    int init, gpus, count;
    Unit units[UNITS];
} Machine;

/* A handle has to outlive the file's next version, so it is a place in the machine and no pointer. */
static void *to_handle(const Unit *u) {
    return (void *)(uintptr_t)(((u->gpu + 1) << 8) | (u->slot + 1));
}

static Unit *add_unit(Machine *m, int gpu, int slot, const char *uuid) {
    if (m->count == UNITS) abort();
    Unit *u = &m->units[m->count++];
    u->gpu = gpu;
    u->slot = slot;
    u->memory_v2 = 1;
    snprintf(u->uuid, TEXT, "%s", uuid);
    return u;
}

static Machine *read_machine(void) {
    static __thread Machine m;
    memset(&m, 0, sizeof m);
    const char *path = getenv("SUBLET_STANDIN_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) {
        m.init = DRIVER_NOT_LOADED;
        return &m;
    }
    Unit *u = NULL;
    char line[256], text[TEXT];
    int slot;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "driver %95s", m.driver) == 1) continue;
        if (sscanf(line, "init %d", &m.init) == 1) continue;
        if (sscanf(line, "gpu %95s", text) == 1) {
            u = add_unit(&m, m.gpus++, -1, text);
            continue;
        }
        if (!u) continue;
        if (sscanf(line, "instance %d %95s", &slot, text) == 2) {
            u = add_unit(&m, m.gpus - 1, slot, text);
            continue;
        }
        if (!strncmp(line, "name ", 5)) snprintf(u->name, TEXT, "%.95s", line + 5);
        sscanf(line, "memory %llu %llu %llu", &u->total, &u->reserved, &u->used);
        sscanf(line, "compute %d %d", &u->major, &u->minor);
        sscanf(line, "mig %d", &u->mig);
        sscanf(line, "error %d", &u->error);
        sscanf(line, "list_error %d", &u->list_error);
        sscanf(line, "memory_v2 %d", &u->memory_v2);
        Process p;
        long long bytes;
        if (sscanf(line, "process %c %u %lld", &p.kind, &p.pid, &bytes) == 3) {
            if (u->count == PROCESSES) abort();
            p.bytes = (u64)bytes;
            u->processes[u->count++] = p;
        }
    }
    fclose(file);
    return &m;
}

static int find(int gpu, int slot, Unit **found) {
    Machine *m = read_machine();
    for (int i = 0; i < m->count; i++)
        if (m->units[i].gpu == gpu && m->units[i].slot == slot) {
            *found = &m->units[i];
            return m->units[i].error;
        }
    return NOT_FOUND;
}

static int find_handle(void *handle, Unit **found) {
    uintptr_t place = (uintptr_t)handle;
    return find((int)(place >> 8) - 1, (int)(place & 0xff) - 1, found);
}

#define UNIT_OF(handle)                     \
    Unit *u;                                \
    int failed = find_handle((handle), &u); \
    if (failed) return failed

int nvmlInitWithFlags(unsigned flags) { return (void)flags, read_machine()->init; }

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) { return (void)code, "an error of the stand-in"; }

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    snprintf(out, size, "%s", read_machine()->driver);
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)read_machine()->gpus;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    Unit *u;
    int failed = find((int)index, -1, &u);
    if (failed) return failed;
    *handle = to_handle(u);
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    Machine *m = read_machine();
    for (int i = 0; i < m->count; i++)
        if (!strcmp(m->units[i].uuid, uuid)) {
            *handle = to_handle(&m->units[i]);
            return m->units[i].error;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetName(void *handle, char *out, unsigned size) {
    UNIT_OF(handle);
    snprintf(out, size, "%s", u->name);
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *out, unsigned size) {
    UNIT_OF(handle);
    snprintf(out, size, "%s", u->uuid);
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    UNIT_OF(handle);
    if (!u->major) return NOT_SUPPORTED;
    *major = u->major;
    *minor = u->minor;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *handle, u64 *out) {
    UNIT_OF(handle);
    out[0] = u->total;
    out[1] = u->total - u->reserved - u->used;
    out[2] = u->reserved + u->used;
    return SUCCESS;
}

typedef struct {
    unsigned version;
    u64 total, reserved, free, used;
} MemoryV2;

int nvmlDeviceGetMemoryInfo_v2(void *handle, MemoryV2 *out) {
    UNIT_OF(handle);
    if (!u->memory_v2) return FUNCTION_NOT_FOUND;
    if (out->version != (sizeof *out | 2u << 24)) return INVALID_ARGUMENT;
    out->total = u->total;
    out->reserved = u->reserved;
    out->free = u->total - u->reserved - u->used;
    out->used = u->used;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    UNIT_OF(handle);
    /* Only cards of compute capability 8 and later know of MIG. */
    if (u->major < 8) return NOT_SUPPORTED;
    *current = *pending = (unsigned)u->mig;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    UNIT_OF(handle);
    *count = 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned slot, void **instance) {
    UNIT_OF(handle);
    failed = find(u->gpu, (int)slot, &u);
    if (failed) return failed;
    *instance = to_handle(u);
    return SUCCESS;
}

typedef struct {
    unsigned pid;
    u64 bytes;
    unsigned gpu_instance, compute_instance;
} ProcessInfo;

static int list(void *handle, char kind, unsigned *count, ProcessInfo *out) {
    UNIT_OF(handle);
    if (u->list_error) return u->list_error;
    unsigned room = *count, found = 0;
    for (int i = 0; i < u->count; i++) {
        if (u->processes[i].kind != kind) continue;
        if (out && found < room) out[found] = (ProcessInfo){u->processes[i].pid, u->processes[i].bytes, 0, 0};
        found++;
    }
    *count = found;
    return found > (out ? room : 0) ? INSUFFICIENT_SIZE : SUCCESS;
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
