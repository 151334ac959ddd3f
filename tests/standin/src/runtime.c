/* libcudart.so.12: what TensorFlow's own kernels and Eigen call. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "kernels.h"

static __thread int last;
static int said(int code) { return code ? (last = code) : code; }

/* ---- kernels, registered when a library with some is loaded ---- */

typedef struct {
    const void *stub; /* the function on the host that launches it */
    Module *module;
    const char *name;
    Kernel *kernel; /* NULL before the first launch */
} Registered;

static Registered *kernels;
static size_t kernel_count, kernel_room;
static int sorted;

Module *__cudaRegisterFatBinary(const void *image) { return new_module(image, 1); }
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
void __cudaRegisterFunction(Module *module, const void *stub, char *device, const char *name, int limit, void *thread,
                            void *block, void *block_size, void *grid_size, int *warp) {
    if (kernel_count == kernel_room) {
        kernel_room = kernel_room ? 2 * kernel_room : 4096;
        kernels = realloc(kernels, kernel_room * sizeof *kernels);
        if (!kernels) abort();
    }
    kernels[kernel_count++] = (Registered){stub, module, name, NULL};
    sorted = 0;
}
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext, size_t size, int constant,
                       int global) {}
void __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name, int ext, size_t size,
                              int constant, int global) {}
char __cudaInitModule(void **handle) { return 1; }

static int by_stub(const void *one, const void *other) {
    const char *a = ((const Registered *)one)->stub, *b = ((const Registered *)other)->stub;
    return (a > b) - (a < b);
}

static Kernel *find_kernel(const void *stub) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    if (!sorted) qsort(kernels, kernel_count, sizeof *kernels, by_stub);
    sorted = 1;
    Registered key = {.stub = stub}, *found = bsearch(&key, kernels, kernel_count, sizeof key, by_stub);
    if (found && !found->kernel) found->kernel = new_kernel(found->module, found->name);
    pthread_mutex_unlock(&mutex);
    return found ? found->kernel : NULL;
}

/* ---- launches ---- */

static __thread struct {
    Dim grid, block;
    size_t shared;
    void *stream;
} call;

unsigned __cudaPushCallConfiguration(Dim grid, Dim block, size_t shared, void *stream) {
    call.grid = grid, call.block = block, call.shared = shared, call.stream = stream;
    return 0;
}
int __cudaPopCallConfiguration(Dim *grid, Dim *block, size_t *shared, void **stream) {
    *grid = call.grid, *block = call.block, *shared = call.shared, *stream = call.stream;
    return 0;
}
int cudaLaunchKernel(const void *stub, Dim grid, Dim block, void **arguments, size_t shared, void *stream) {
    if (!is_ready()) return said(NOT_INITIALIZED);
    Kernel *kernel = find_kernel(stub);
    if (!kernel) return said(INVALID_VALUE);
    run_kernel(kernel, grid, block, arguments, shared);
    return SUCCESS;
}
typedef struct {
    Dim grid, block;
    size_t shared;
    /* and more */
} LaunchConfig;
int cudaLaunchKernelExC(const LaunchConfig *config, const void *stub, void **arguments) {
    return cudaLaunchKernel(stub, config->grid, config->block, arguments, config->shared, NULL);
}
int cudaGetFuncBySymbol(Kernel **function, const void *stub) {
    return (*function = find_kernel(stub)) ? SUCCESS : said(INVALID_VALUE);
}
int cudaFuncSetAttribute(const void *function, int attribute, int value) { return SUCCESS; }
int cudaFuncSetCacheConfig(const void *function, int config) { return SUCCESS; }
/* The beginning of cudaFuncAttributes. */
typedef struct {
    size_t shared, constant, local;
    int threads_of_a_block, registers, ptx_version, binary_version;
    int cache_mode, dynamic_shared, carveout, cluster;
} FunctionAttributes;
int cudaFuncGetAttributes(FunctionAttributes *out, const void *function) {
    /* The kernels that are run are those for 9.0: CUB has to size its launches for them. */
    *out = (FunctionAttributes){.threads_of_a_block = 1024, .registers = 32, .ptx_version = 90, .binary_version = 90};
    return SUCCESS;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *number, const void *function, int size, size_t shared) {
    return *number = 2, SUCCESS;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *number, const void *function, int size, size_t shared,
                                                           unsigned flags) {
    return *number = 2, SUCCESS;
}

/* ---- devices ---- */

int cudaRuntimeGetVersion(int *version) { return *version = CUDA_VERSION, SUCCESS; }
int cudaDriverGetVersion(int *version) { return *version = read_machine()->cuda, SUCCESS; }

/* A runtime works with drivers of its own major version and newer ones. */
static int start(void) {
    return read_machine()->cuda < CUDA_VERSION / 1000 * 1000 ? INSUFFICIENT_DRIVER : cuInit(0);
}

int cudaGetDeviceCount(int *count) {
    int failed = start();
    *count = device_count();
    return said(failed);
}
int cudaGetDevice(int *device) {
    int failed = start();
    if (!failed) *device = current_device();
    return said(failed);
}
int cudaSetDevice(int device) {
    int failed = start();
    if (!failed && (device < 0 || device >= device_count())) failed = INVALID_DEVICE;
    if (!failed) set_current_device(device);
    return said(failed);
}
int cudaDeviceSynchronize(void) { return SUCCESS; }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -5, SUCCESS; }
int cudaDeviceGetAttribute(int *out, int attribute, int device) {
    if (device < 0 || device >= device_count()) return said(INVALID_DEVICE);
    return *out = device_attribute(device_card(device), attribute), SUCCESS;
}

/* cudaDeviceProp of CUDA 12, as far as anyone looks; the rest is zero. */
typedef struct {
    char name[256];
    unsigned char uuid[16];
    char luid[8];
    unsigned node_mask;
    size_t total, shared_per_block;
    int registers, warp;
    size_t pitch;
    int threads_per_block, block[3], grid[3], clock;
    size_t constant;
    int major, minor;
    size_t texture[2];
    int overlap, multiprocessors, timeout, integrated, map_host, mode;
    int textures[40];
    size_t surface_alignment;
    int concurrent, ecc, bus, device, domain, tcc, engines, unified, memory_clock, bus_width, l2, persisting;
    int threads_per_multiprocessor, priorities, global_l1, local_l1;
    size_t shared_per_multiprocessor;
    int registers_per_multiprocessor, managed;
    char rest[1032 - 656];
} Properties;
_Static_assert(sizeof(Properties) == 1032, "the size of cudaDeviceProp");

int cudaGetDeviceProperties_v2(Properties *out, int device) {
    if (cuInit(0) || device < 0 || device >= device_count()) return said(INVALID_DEVICE);
    const Card *card = device_card(device);
    memset(out, 0, sizeof *out);
    strcpy(out->name, card->name);
    out->total = card->total - card->reserved;
    struct { int attribute, *at; } facts[] = {
        {12, &out->registers}, {10, &out->warp}, {1, &out->threads_per_block}, {2, &out->block[0]}, {3, &out->block[1]},
        {4, &out->block[2]}, {5, &out->grid[0]}, {6, &out->grid[1]}, {7, &out->grid[2]}, {13, &out->clock},
        {75, &out->major},
        {76, &out->minor}, {16, &out->multiprocessors}, {31, &out->concurrent}, {33, &out->bus}, {40, &out->engines},
        {41, &out->unified}, {36, &out->memory_clock}, {37, &out->bus_width}, {38, &out->l2},
        {39, &out->threads_per_multiprocessor}, {82, &out->registers_per_multiprocessor}};
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) *facts[i].at = device_attribute(card, facts[i].attribute);
    out->shared_per_block = (size_t)device_attribute(card, 8);
    out->shared_per_multiprocessor = (size_t)device_attribute(card, 81);
    return SUCCESS;
}

/* ---- errors ---- */

int cudaGetLastError(void) {
    int code = last;
    return last = SUCCESS, code;
}
int cudaPeekAtLastError(void) { return last; }
const char *cudaGetErrorName(int code) {
    const char *text;
    return cuGetErrorName(code, &text), text;
}
const char *cudaGetErrorString(int code) {
    const char *text;
    return cuGetErrorString(code, &text), text;
}

/* ---- memory and streams ---- */

/* The runtime opens the driver by its name and asks it for each function: whatever library stands in the
 * driver's place is used by it, too. */
static void *of_driver(const char *symbol) {
    static int (*look_up)(const char *, void **, int, u64, int *);
    void *function = NULL, *driver = look_up ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver) look_up = dlsym(driver, "cuGetProcAddress_v2");
    if (!look_up || look_up(symbol, &function, CUDA_VERSION, 0, NULL)) abort();
    return function;
}

int cudaMalloc(void **out, size_t size) {
    /* The runtime makes a context where there is none yet, and keeps it. */
    void *context;
    int failed = cuInit(0);
    if (!failed) failed = cuDevicePrimaryCtxRetain(&context, current_device());
    return said(failed ? failed : ((__typeof__(cuMemAlloc_v2) *)of_driver("cuMemAlloc"))(out, size));
}
int cudaFree(void *at) { return said(((__typeof__(cuMemFree_v2) *)of_driver("cuMemFree"))(at)); }
int cudaMemGetInfo(size_t *left, size_t *total) {
    return said(((__typeof__(cuMemGetInfo_v2) *)of_driver("cuMemGetInfo"))(left, total));
}
int cudaMemcpy(void *to, const void *from, size_t size, int kind) { return memmove(to, from, size), SUCCESS; }
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
    return memmove(to, from, size), SUCCESS;
}
int cudaMemset(void *to, int value, size_t size) { return memset(to, value, size), SUCCESS; }
int cudaMemsetAsync(void *to, int value, size_t size, void *stream) { return memset(to, value, size), SUCCESS; }
int cudaStreamSynchronize(void *stream) { return SUCCESS; }
int cudaStreamQuery(void *stream) { return SUCCESS; }
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) { return SUCCESS; }
int cudaStreamIsCapturing(void *stream, int *status) { return *status = 0, SUCCESS; }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return *stream = new_handle(), SUCCESS; }
int cudaStreamCreate(void **stream) { return *stream = new_handle(), SUCCESS; }
int cudaStreamDestroy(void *stream) { return free(stream), SUCCESS; }
int cudaEventCreateWithFlags(void **event, unsigned flags) { return *event = new_handle(), SUCCESS; }
int cudaEventRecord(void *event, void *stream) { return SUCCESS; }
int cudaEventQuery(void *event) { return SUCCESS; }
int cudaEventSynchronize(void *event) { return SUCCESS; }
int cudaEventDestroy(void *event) { return free(event), SUCCESS; }
