/* libcuda.so.1: devices and contexts. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ledger.h"

static struct {
    Card card;
    int retained; /* how often its primary context is */
    u64 context;  /* what that takes of the card */
} devices[CARDS];
static int count;
static pid_t initialised;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static __thread int current = -1;

int is_ready(void) { return initialised == getpid(); }
int device_count(void) { return is_ready() ? count : 0; }
const Card *device_card(int device) { return &devices[device].card; }
int current_device(void) { return current < 0 ? 0 : current; }
void set_current_device(int device) { current = device; }
void *new_handle(void) { return calloc(1, 1024); }

void *new_library_handle(void) {
    u64 bytes = read_machine()->handle;
    const Card *card = &devices[current_device()].card;
    if (bytes && take(card, bytes)) {
        note("refused a handle on %s", card->uuid);
        return NULL;
    }
    return new_handle();
}

int cuInit(unsigned flags) {
    if (initialised && !is_ready()) {
        note("cuInit after a fork");
        return NOT_INITIALIZED;
    }
    pthread_mutex_lock(&mutex);
    if (!initialised) {
        Card cards[CARDS];
        count = visible_cards(cards);
        for (int i = 0; i < count; i++) devices[i].card = cards[i];
        note("cuInit: %d cards", count);
        if (count) initialised = getpid();
    }
    pthread_mutex_unlock(&mutex);
    return count ? SUCCESS : NO_DEVICE;
}

/* The newest form of a function that this version of CUDA has had; as the driver does it, by its name
 * without the form. */
int cuGetProcAddress_v2(const char *symbol, void **function, int version, u64 flags, int *status) {
    enum { PER_THREAD = 2 };
    static const struct { const char *symbol; int version; } seconds[] = {
        {"cuGetProcAddress", 12000}, {"cuCtxDestroy", 4000}, {"cuDevicePrimaryCtxRelease", 11000},
        {"cuDevicePrimaryCtxReset", 11000}};
    static void *self;
    Dl_info own;
    char name[128];
    int since = 3020;
    if (!self && dladdr((void *)cuInit, &own)) self = dlopen(own.dli_fname, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++)
        if (!strcmp(symbol, seconds[i].symbol)) since = seconds[i].version;
    *function = NULL;
    snprintf(name, sizeof name, "%s_ptsz", symbol);
    if (flags & PER_THREAD) *function = dlsym(self, name);
    snprintf(name, sizeof name, "%s_v2", symbol);
    if (!*function && version >= since) *function = dlsym(self, name);
    if (!*function) *function = dlsym(self, symbol);
    if (status) *status = !*function;
    return *function ? SUCCESS : NOT_FOUND;
}

int cuGetProcAddress(const char *symbol, void **function, int version, u64 flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}

int cuDriverGetVersion(int *version) { return *version = read_machine()->cuda, SUCCESS; }

/* ---- errors ---- */

static const struct {
    int code;
    const char *name, *words;
} errors[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INSUFFICIENT_DRIVER, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

int cuGetErrorName(int code, const char **text) {
    *text = "CUDA_ERROR_OF_STANDIN";
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) *text = errors[i].name;
    return SUCCESS;
}

int cuGetErrorString(int code, const char **text) {
    *text = "an error of the stand-in";
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) *text = errors[i].words;
    return SUCCESS;
}

/* ---- devices ---- */

int cuDeviceGetCount(int *out) {
    READY();
    return *out = count, SUCCESS;
}

int cuDeviceGet(int *device, int ordinal) {
    READY();
    KNOWN(ordinal);
    return *device = ordinal, SUCCESS;
}

int cuDeviceGetName(char *out, int size, int device) {
    READY();
    KNOWN(device);
    return snprintf(out, (size_t)size, "%s", devices[device].card.name), SUCCESS;
}

/* The sixteen bytes of a UUID; of a short one in a test, as many as it has. */
int cuDeviceGetUuid_v2(unsigned char out[16], int device) {
    READY();
    KNOWN(device);
    memset(out, 0, 16);
    const char *hex = "0123456789abcdef";
    int digits = 0;
    for (const char *at = devices[device].card.uuid + 4; *at && digits < 32; at++) {
        const char *found = strchr(hex, *at | 32);
        if (!found) continue;
        out[digits / 2] |= (unsigned char)((found - hex) << (digits % 2 ? 0 : 4));
        digits++;
    }
    return SUCCESS;
}

int cuDeviceGetUuid(unsigned char out[16], int device) { return cuDeviceGetUuid_v2(out, device); }

int cuDeviceGetPCIBusId(char *out, int size, int device) {
    READY();
    KNOWN(device);
    return snprintf(out, (size_t)size, "0000:%02X:00.0", devices[device].card.gpu + 1), SUCCESS;
}

int cuDeviceTotalMem_v2(size_t *out, int device) {
    READY();
    KNOWN(device);
    return *out = devices[device].card.total - devices[device].card.reserved, SUCCESS;
}

int cuDeviceGetAttribute(int *out, int attribute, int device) {
    READY();
    KNOWN(device);
    return *out = device_attribute(&devices[device].card, attribute), SUCCESS;
}

int cuDeviceCanAccessPeer(int *can, int one, int other) {
    READY();
    return *can = one != other && read_machine()->peers, SUCCESS;
}

int cuDeviceGetP2PAttribute(int *out, int attribute, int one, int other) {
    return cuDeviceCanAccessPeer(out, one, other);
}

int cuCtxEnablePeerAccess(void *context, unsigned flags) { return SUCCESS; }

/* The numbers of CUdevice_attribute; the figures are an A100's. */
int device_attribute(const Card *card, int attribute) {
    switch (attribute) {
        case 1: return 1024;            /* threads of a block */
        case 2: case 3: return 1024;    /* block x, y */
        case 4: return 64;              /* block z */
        case 5: return 2147483647;      /* grid x */
        case 6: case 7: return 65535;   /* grid y, z */
        case 8: return 48 << 10;        /* shared memory of a block */
        case 9: return 64 << 10;        /* constant memory */
        case 10: return 32;             /* warp */
        case 12: return 65536;          /* registers of a block */
        case 13: return 1410000;        /* clock, kHz */
        case 14: return 512;            /* texture alignment */
        case 16: return card->processors;
        case 19: return 1;              /* maps host memory */
        case 31: return 1;              /* concurrent kernels */
        case 33: return card->gpu + 1;  /* PCI bus */
        case 36: return 1215000;        /* memory clock, kHz */
        case 37: return 5120;           /* memory bus, bits */
        case 38: return 40 << 20;       /* L2 */
        case 39: return 2048;           /* threads of a multiprocessor */
        case 40: return 3;              /* copy engines */
        case 41: return 1;              /* unified addresses */
        case 75: return card->major;
        case 76: return card->minor;
        case 78: case 79: case 80: return 1; /* stream priorities, caching in L1 */
        case 81: return 164 << 10;      /* shared memory of a multiprocessor */
        case 82: return 65536;          /* registers of a multiprocessor */
        case 83: return 1;              /* managed memory */
        case 90: case 91: case 95: case 99: return 1; /* the host's and managed memory, cooperative launch */
        case 97: return 163 << 10;      /* shared memory of a block, opted in */
        case 106: return 32;            /* blocks of a multiprocessor */
        case 115: return 1;             /* memory pools */
    }
    return 0;
}

/* ---- contexts ---- */

int cuDevicePrimaryCtxRetain(void **context, int device) {
    READY();
    KNOWN(device);
    const Card *card = &devices[device].card;
    int failed = 0;
    pthread_mutex_lock(&mutex);
    if (!devices[device].retained) {
        u64 bytes = read_machine()->context;
        failed = take(card, bytes);
        if (!failed) devices[device].context = bytes;
        note(failed ? "refused a context on %s" : "context on %s", card->uuid);
    }
    if (!failed) devices[device].retained++;
    pthread_mutex_unlock(&mutex);
    *context = to_context(device);
    return failed ? OUT_OF_MEMORY : SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    READY();
    KNOWN(device);
    pthread_mutex_lock(&mutex);
    int ends = devices[device].retained && !--devices[device].retained;
    if (ends) give_back(&devices[device].card, devices[device].context);
    pthread_mutex_unlock(&mutex);
    if (ends) release_all_on(device);
    return SUCCESS;
}

int cuDevicePrimaryCtxReset_v2(int device) {
    READY();
    KNOWN(device);
    while (devices[device].retained) cuDevicePrimaryCtxRelease_v2(device);
    return SUCCESS;
}

/* Only primary contexts are ever made. */
int cuCtxDestroy_v2(void *context) { return INVALID_VALUE; }

int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) { return SUCCESS; }

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    READY();
    KNOWN(device);
    *flags = 0;
    *active = devices[device].retained > 0;
    return SUCCESS;
}

int cuCtxSetCurrent(void *context) {
    READY();
    return current = to_device(context), SUCCESS;
}

int cuCtxGetCurrent(void **context) {
    READY();
    return *context = to_context(current), SUCCESS;
}

int cuCtxPushCurrent_v2(void *context) { return cuCtxSetCurrent(context); }

int cuCtxPopCurrent_v2(void **context) { return context ? cuCtxGetCurrent(context) : SUCCESS; }

int cuCtxGetDevice(int *device) {
    READY();
    return *device = current_device(), SUCCESS;
}

int cuCtxSynchronize(void) { return SUCCESS; }

int cuCtxGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -5, SUCCESS; }
