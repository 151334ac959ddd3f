#include "kernels.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fatbin.h"
#include "interpreter.h"
#include "machine.h"

struct Module {
    const void *image;
    char *ptx;
    int is_read;
};

struct Kernel {
    Module *module;
    char *name;
    Function *function;
    int is_read;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void read_module(Module *module) {
    if (!module->is_read) module->ptx = ptx_of_image(module->image);
    module->is_read = 1;
}

Module *new_module(const void *image, int lasting) {
    Module *module = calloc(1, sizeof *module);
    module->image = image;
    if (!lasting) read_module(module);
    return module;
}

Kernel *new_kernel(Module *module, const char *name) {
    Kernel *kernel = calloc(1, sizeof *kernel);
    kernel->module = module;
    kernel->name = strdup(name);
    return kernel;
}

/* XLA's autotuning holds a stream up until the host lets go, which would never end here, and looks
 * through megabytes around a result for what was overwritten, which would take a minute. */
static int is_of_no_use(const char *name) { return strstr(name, "DelayKernel") || strstr(name, "redzone_checker"); }

static void read_kernel(Kernel *kernel) {
    pthread_mutex_lock(&mutex);
    if (!kernel->is_read) {
        read_module(kernel->module);
        if (is_of_no_use(kernel->name)) note("leaves out %.400s", kernel->name);
        else if (kernel->module->ptx) kernel->function = read_function(kernel->module->ptx, kernel->name);
        else note("cannot compute %.400s: its module has no PTX", kernel->name);
        kernel->is_read = 1;
    }
    pthread_mutex_unlock(&mutex);
}

void run_kernel(Kernel *kernel, Dim grid, Dim block, void **arguments, size_t shared) {
    if (!read_machine()->computes) return;
    if (!kernel->is_read) read_kernel(kernel);
    if (kernel->function && interpret(kernel->function, grid, block, arguments, shared))
        note("gave up %.400s: it takes too long", kernel->name);
}
