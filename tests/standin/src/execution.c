/* libcuda.so.1: streams, events, modules and graphs. Everything is done when it is called, so a
 * stream or an event is always complete. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver.h"
#include "kernels.h"

/* ---- streams and events ---- */

int cuStreamCreate(void **stream, unsigned flags) { return *stream = new_handle(), SUCCESS; }
int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    READY();
    return *stream = new_handle(), SUCCESS;
}
int cuStreamDestroy_v2(void *stream) { return free(stream), SUCCESS; }
int cuStreamQuery(void *stream) { return is_ready() ? SUCCESS : NOT_INITIALIZED; }
int cuStreamSynchronize(void *stream) { return is_ready() ? SUCCESS : NOT_INITIALIZED; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return SUCCESS; }
int cuStreamIsCapturing(void *stream, int *status) { return *status = 0, SUCCESS; }
int cuStreamGetPriority(void *stream, int *priority) { return *priority = 0, SUCCESS; }
int cuLaunchHostFunc(void *stream, void (*call)(void *), void *data) { return call(data), SUCCESS; }
int cuStreamAddCallback(void *stream, void (*call)(void *, int, void *), void *data, unsigned flags) {
    return call(stream, SUCCESS, data), SUCCESS;
}

/* An event is the time at which it was recorded. */
int cuEventCreate(void **event, unsigned flags) {
    READY();
    return *event = new_handle(), SUCCESS;
}
int cuEventDestroy_v2(void *event) { return free(event), SUCCESS; }
int cuEventRecord(struct timespec *event, void *stream) {
    READY();
    return clock_gettime(CLOCK_MONOTONIC, event), SUCCESS;
}
int cuEventQuery(void *event) { return is_ready() ? SUCCESS : NOT_INITIALIZED; }
int cuEventSynchronize(void *event) { return is_ready() ? SUCCESS : NOT_INITIALIZED; }
int cuEventElapsedTime(float *milliseconds, const struct timespec *from, const struct timespec *to) {
    double seconds = (double)(to->tv_sec - from->tv_sec) + (double)(to->tv_nsec - from->tv_nsec) / 1e9;
    return *milliseconds = (float)(seconds * 1e3), SUCCESS;
}

/* ---- modules and kernels ---- */

int cuModuleLoadData(Module **module, const void *image) {
    READY();
    return *module = new_module(image, 0), SUCCESS;
}
int cuModuleLoadDataEx(Module **module, const void *image, unsigned number, int *options, void **values) {
    return cuModuleLoadData(module, image);
}
int cuModuleLoadFatBinary(Module **module, const void *image) { return cuModuleLoadData(module, image); }
int cuModuleUnload(Module *module) { return SUCCESS; }

int cuModuleGetFunction(Kernel **function, Module *module, const char *name) {
    return *function = new_kernel(module, name), SUCCESS;
}

int cuModuleGetGlobal_v2(void **at, size_t *size, void *module, const char *name) {
    static char global[1 << 16];
    if (at) *at = global;
    if (size) *size = sizeof global;
    return SUCCESS;
}

int cuFuncGetAttribute(int *out, int attribute, void *function) {
    enum { THREADS_OF_A_BLOCK = 0, REGISTERS = 4, PTX_VERSION = 5, BINARY_VERSION = 6 };
    switch (attribute) {
        case THREADS_OF_A_BLOCK: *out = 1024; break;
        case REGISTERS: *out = 32; break;
        case PTX_VERSION: case BINARY_VERSION: *out = 90; break;
        default: *out = 0;
    }
    return SUCCESS;
}
int cuFuncSetAttribute(void *function, int attribute, int value) { return SUCCESS; }
int cuFuncSetCacheConfig(void *function, int config) { return SUCCESS; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *number, void *function, int size, size_t shared) {
    return *number = 2, SUCCESS;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *number, void *function, int size, size_t shared,
                                                         unsigned flags) {
    return *number = 2, SUCCESS;
}
int cuOccupancyMaxPotentialBlockSize(int *grid, int *block, void *function, void *of, size_t shared, int limit) {
    return *grid = 216, *block = 1024, SUCCESS;
}

int cuLaunchKernel(Kernel *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **parameters, void **extra) {
    READY();
    run_kernel(function, (Dim){gx, gy, gz}, (Dim){bx, by, bz}, parameters, shared);
    return SUCCESS;
}

typedef struct {
    Dim grid, block;
    unsigned shared;
    /* and more */
} LaunchConfig;

int cuLaunchKernelEx(const LaunchConfig *config, Kernel *function, void **parameters, void **extra) {
    READY();
    run_kernel(function, config->grid, config->block, parameters, config->shared);
    return SUCCESS;
}

/* ---- graphs, with which XLA repeats its work: nothing of it is done again; a graph counts its nodes ---- */

int cuGraphCreate(void **graph, unsigned flags) {
    READY();
    return *graph = new_handle(), SUCCESS;
}
int cuGraphDestroy(void *graph) { return free(graph), SUCCESS; }
int cuGraphInstantiateWithFlags(void **exec, void *graph, u64 flags) { return *exec = new_handle(), SUCCESS; }
int cuGraphExecDestroy(void *exec) { return free(exec), SUCCESS; }
int cuGraphLaunch(void *exec, void *stream) { return is_ready() ? SUCCESS : NOT_INITIALIZED; }
int cuGraphGetNodes(size_t *graph, void **nodes, size_t *number) { return *number = *graph, SUCCESS; }
int cuGraphGetRootNodes(size_t *graph, void **nodes, size_t *number) { return *number = *graph, SUCCESS; }
int cuDeviceGraphMemTrim(int device) { return SUCCESS; }

#define ADD_NODE(name)                                                                                       \
    int name(void **node, size_t *graph, const void **after, size_t number, const void *parameters) {        \
        return ++*graph, *node = new_handle(), SUCCESS;                                                      \
    }
ADD_NODE(cuGraphAddKernelNode_v2)
ADD_NODE(cuGraphAddMemsetNode)
ADD_NODE(cuGraphAddMemcpyNode)
ADD_NODE(cuGraphAddChildGraphNode)
ADD_NODE(cuGraphAddEmptyNode)

#define CHANGE_NODE(name) \
    int name(void *exec, void *node, const void *parameters) { return SUCCESS; }
CHANGE_NODE(cuGraphExecKernelNodeSetParams_v2)
CHANGE_NODE(cuGraphExecMemsetNodeSetParams)
CHANGE_NODE(cuGraphExecMemcpyNodeSetParams)
CHANGE_NODE(cuGraphExecChildGraphNodeSetParams)
CHANGE_NODE(cuGraphKernelNodeSetAttribute)

/* What is captured is one node; a stream keeps the graph that it captures for. */
int cuStreamBeginCaptureToGraph(void **stream, size_t *graph, const void *after, const void *data, size_t number,
                                int mode) {
    return ++*graph, *stream = graph, SUCCESS;
}
int cuStreamEndCapture(void **stream, void **graph) { return *graph = *stream, SUCCESS; }
