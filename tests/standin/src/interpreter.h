/* Runs a kernel on the host, block after block. The threads of a block take turns: each runs until it
 * has to wait for others, at a barrier or where the threads of a warp exchange values. */
#pragma once
#include "kernels.h"
#include "ptx.h"

/* `arguments` are the addresses of the parameters. 0, or -1 if it took too many instructions and was
 * given up. */
int interpret(const Function *function, Dim grid, Dim block, void **arguments, size_t shared);
