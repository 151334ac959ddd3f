/* What the parts of the stand-in for CUDA share. Codes are those of the driver; the runtime's are
 * the same as far as they are used here. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include "machine.h"

enum { CUDA_VERSION = 12050 };
enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    NOT_FOUND = 500,
    INSUFFICIENT_DRIVER = 35,
    NOT_SUPPORTED = 801,
};

/* A driver that was initialised before a fork is of no use to the child. */
int is_ready(void);
#define READY() \
    if (!is_ready()) return NOT_INITIALIZED

/* The cards that were visible at cuInit; 0 of them before it. */
int device_count(void);
const Card *device_card(int device);
int device_attribute(const Card *card, int attribute);
#define KNOWN(device) \
    if ((device) < 0 || (device) >= device_count()) return INVALID_DEVICE

/* A context is the number of its device and 1, made a pointer; NULL is none. */
static inline void *to_context(int device) { return (void *)(intptr_t)(device + 1); }
static inline int to_device(const void *context) { return (int)(intptr_t)context - 1; }

/* The device of this thread's current context; the first where there is none. */
int current_device(void);
void set_current_device(int device);

/* A handle of a library, with the memory that it takes of the current device; NULL where that is refused.
 * What it has taken stays with the process. */
void *new_library_handle(void);

/* An object of which the stand-in needs the address only, and perhaps a few bytes. */
void *new_handle(void);

void release_all_on(int device);

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuMemAlloc_v2(void **out, size_t size);
int cuMemFree_v2(void *at);
int cuMemGetInfo_v2(size_t *left, size_t *total);
int cuGetErrorName(int code, const char **text);
int cuGetErrorString(int code, const char **text);
