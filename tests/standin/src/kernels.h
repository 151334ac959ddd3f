/* Modules and the kernels in them. A kernel is computed from the PTX that its module carries; one that
 * has none, or has something that is not understood, is launched and does nothing. */
#pragma once
#include <stddef.h>

typedef struct {
    unsigned x, y, z;
} Dim;

typedef struct Module Module;
typedef struct Kernel Kernel;

/* `lasting`: the image stays where it is, and is not read before a kernel of it is launched. */
Module *new_module(const void *image, int lasting);
Kernel *new_kernel(Module *module, const char *name);

/* `arguments` are the addresses of the parameters, `shared` the size of shared memory that the kernel
 * itself does not say. */
void run_kernel(Kernel *kernel, Dim grid, Dim block, void **arguments, size_t shared);
