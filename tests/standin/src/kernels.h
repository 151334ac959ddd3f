/* The kernels that the stand-in computes, on the host. All others are launched and do nothing. */
#pragma once
#include <stddef.h>

typedef struct {
    unsigned x, y, z;
} Dim;

/* Do what the kernel of this name would, if it is known; else note its name, once. `arguments` are
 * the addresses of the kernel's parameters. */
void run_kernel(const char *name, Dim grid, Dim block, void **arguments);
