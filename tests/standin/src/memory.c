/* libcuda.so.1: memory. That of a device is memory of this process, mapped lazily and entered in the
 * ledger. So a copy is a copy, a fill is a fill, and host code can compute what a kernel would. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "driver.h"
#include "ledger.h"

enum { ON_HOST = -1 };

typedef struct Block {
    struct Block *next;
    char *start;
    size_t size;
    int device; /* or ON_HOST: pinned memory of the host */
    int managed;
} Block;

static Block *blocks;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static const char *place(int device) { return device == ON_HOST ? "the host" : device_card(device)->uuid; }

/* What an allocation takes of a card: whole pages of 2 MiB, for small ones pieces of a page. */
static u64 rounded(size_t size) {
    size_t grain = size < 1 << 20 ? 512 : 2 << 20;
    return (size + grain - 1) / grain * grain;
}

static int allocate(void **out, size_t size, int device, int managed) {
    READY();
    if (!size) return INVALID_VALUE;
    if (device != ON_HOST) {
        KNOWN(device);
        if (take(device_card(device), rounded(size))) {
            note("refused %zu on %s", size, place(device));
            return OUT_OF_MEMORY;
        }
    }
    char *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) abort();
    /* A child has none of its parent's device memory. */
    if (device != ON_HOST) madvise(start, size, MADV_DONTFORK);
    Block *block = malloc(sizeof *block);
    pthread_mutex_lock(&mutex);
    *block = (Block){blocks, start, size, device, managed};
    blocks = block;
    pthread_mutex_unlock(&mutex);
    note("allocated %zu on %s", size, place(device));
    *out = start;
    return SUCCESS;
}

static int release(void *at) {
    READY();
    if (!at) return SUCCESS;
    pthread_mutex_lock(&mutex);
    Block **link = &blocks;
    while (*link && (*link)->start != at) link = &(*link)->next;
    Block *block = *link;
    if (block) *link = block->next;
    pthread_mutex_unlock(&mutex);
    if (!block) return INVALID_VALUE;
    munmap(block->start, block->size);
    if (block->device != ON_HOST) give_back(device_card(block->device), rounded(block->size));
    note("freed %zu on %s", block->size, place(block->device));
    free(block);
    return SUCCESS;
}

/* A copy of the block that this address is in; 0 where it is in none. */
static int find(const void *at, Block *found) {
    pthread_mutex_lock(&mutex);
    Block *block = blocks;
    while (block && !((const char *)at >= block->start && (const char *)at < block->start + block->size))
        block = block->next;
    if (block) *found = *block;
    pthread_mutex_unlock(&mutex);
    return block != NULL;
}

/* ---- allocations ---- */

int cuMemGetInfo_v2(size_t *left, size_t *total) {
    READY();
    const Card *card = device_card(current_device());
    *total = card->total - card->reserved;
    *left = left_on(card);
    return SUCCESS;
}

int cuMemAlloc_v2(void **out, size_t size) { return allocate(out, size, current_device(), 0); }
int cuMemAllocManaged(void **out, size_t size, unsigned flags) { return allocate(out, size, current_device(), 1); }
int cuMemAllocAsync(void **out, size_t size, void *stream) { return cuMemAlloc_v2(out, size); }
int cuMemAllocFromPoolAsync(void **out, size_t size, void *pool, void *stream) {
    return allocate(out, size, to_device(pool), 0);
}
int cuMemAllocPitch_v2(void **out, size_t *pitch, size_t width, size_t height, unsigned element) {
    *pitch = (width + 511) / 512 * 512;
    return cuMemAlloc_v2(out, *pitch * height);
}
int cuMemFree_v2(void *at) { return release(at); }
int cuMemFreeAsync(void *at, void *stream) { return release(at); }

/* The same for programs whose default stream is each thread's own. */
int cuMemAllocAsync_ptsz(void **out, size_t size, void *stream) { return cuMemAlloc_v2(out, size); }
int cuMemAllocFromPoolAsync_ptsz(void **out, size_t size, void *pool, void *stream) {
    return cuMemAllocFromPoolAsync(out, size, pool, stream);
}
int cuMemFreeAsync_ptsz(void *at, void *stream) { return release(at); }

/* Physical memory, which is mapped to addresses later; here it has its address at once. */
int cuMemCreate(void **handle, size_t size, const int *properties, u64 flags) {
    enum { WHERE = 2, WHICH = 3, ON_DEVICE = 1 };
    return allocate(handle, size, properties[WHERE] == ON_DEVICE ? properties[WHICH] : ON_HOST, 0);
}
int cuMemRelease(void *handle) { return release(handle); }

/* A context ends, and its memory with it. */
void release_all_on(int device) {
    for (;;) {
        pthread_mutex_lock(&mutex);
        Block *block = blocks;
        while (block && block->device != device) block = block->next;
        void *start = block ? block->start : NULL;
        pthread_mutex_unlock(&mutex);
        if (!start) return;
        release(start);
    }
}

int cuMemHostAlloc(void **out, size_t size, unsigned flags) { return allocate(out, size, ON_HOST, 0); }
int cuMemAllocHost_v2(void **out, size_t size) { return allocate(out, size, ON_HOST, 0); }
int cuMemFreeHost(void *at) { return release(at); }
int cuMemHostRegister_v2(void *at, size_t size, unsigned flags) { return SUCCESS; }
int cuMemHostUnregister(void *at) { return SUCCESS; }
int cuMemHostGetDevicePointer_v2(void **out, void *at, unsigned flags) { return *out = at, SUCCESS; }

/* The pool of a device is its context. It keeps nothing. */
int cuDeviceGetDefaultMemPool(void **pool, int device) { return *pool = to_context(device), SUCCESS; }
int cuDeviceGetMemPool(void **pool, int device) { return *pool = to_context(device), SUCCESS; }
int cuMemPoolCreate(void **pool, const int *properties) { return *pool = to_context(properties[3]), SUCCESS; }
int cuMemPoolDestroy(void *pool) { return SUCCESS; }
int cuMemPoolSetAttribute(void *pool, int attribute, void *value) { return SUCCESS; }
int cuMemPoolGetAttribute(void *pool, int attribute, u64 *value) { return *value = 0, SUCCESS; }
int cuMemPoolSetAccess(void *pool, const void *map, size_t number) { return SUCCESS; }
int cuMemPoolTrimTo(void *pool, size_t keep) { return SUCCESS; }

/* ---- facts about an address ---- */

int cuMemGetAddressRange_v2(void **start, size_t *size, void *at) {
    Block block;
    if (!find(at, &block)) return INVALID_VALUE;
    if (start) *start = block.start;
    if (size) *size = block.size;
    return SUCCESS;
}

int cuPointerGetAttribute(void *out, int attribute, void *at) {
    enum { CONTEXT = 1, TYPE = 2, DEVICE_POINTER = 3, HOST_POINTER = 4, MANAGED = 8, ORDINAL = 9, START = 11, SIZE = 12 };
    enum { HOST_TYPE = 1, DEVICE_TYPE = 2 };
    Block block;
    if (!find(at, &block)) return INVALID_VALUE;
    int device = block.device == ON_HOST ? 0 : block.device;
    switch (attribute) {
        case CONTEXT: *(void **)out = to_context(device); break;
        case TYPE: *(unsigned *)out = block.device == ON_HOST ? HOST_TYPE : DEVICE_TYPE; break;
        case DEVICE_POINTER: case HOST_POINTER: *(void **)out = at; break;
        case MANAGED: *(unsigned *)out = (unsigned)block.managed; break;
        case ORDINAL: *(int *)out = device; break;
        case START: *(void **)out = block.start; break;
        case SIZE: *(size_t *)out = block.size; break;
        default: return NOT_SUPPORTED;
    }
    return SUCCESS;
}

int cuPointerGetAttributes(unsigned number, const int *attributes, void **out, void *at) {
    int failed = SUCCESS;
    for (unsigned i = 0; i < number && !failed; i++) failed = cuPointerGetAttribute(out[i], attributes[i], at);
    return failed;
}

/* ---- copies and fills ---- */

static int copy(void *to, const void *from, size_t size) {
    READY();
    return memmove(to, from, size), SUCCESS;
}

int cuMemcpy(void *to, const void *from, size_t size) { return copy(to, from, size); }
int cuMemcpyHtoD_v2(void *to, const void *from, size_t size) { return copy(to, from, size); }
int cuMemcpyDtoH_v2(void *to, const void *from, size_t size) { return copy(to, from, size); }
int cuMemcpyDtoD_v2(void *to, const void *from, size_t size) { return copy(to, from, size); }
int cuMemcpyAsync(void *to, const void *from, size_t size, void *stream) { return copy(to, from, size); }
int cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t size, void *stream) { return copy(to, from, size); }
int cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t size, void *stream) { return copy(to, from, size); }
int cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t size, void *stream) { return copy(to, from, size); }
int cuMemcpyPeerAsync(void *to, void *there, const void *from, void *here, size_t size, void *stream) {
    return copy(to, from, size);
}

#define FILL(name, type)                                                          \
    int name##_v2(type *to, type value, size_t number) {                          \
        READY();                                                                  \
        for (size_t i = 0; i < number; i++) to[i] = value;                        \
        return SUCCESS;                                                           \
    }                                                                             \
    int name##Async(type *to, type value, size_t number, void *stream) {          \
        return name##_v2(to, value, number);                                      \
    }
FILL(cuMemsetD8, unsigned char)
FILL(cuMemsetD16, unsigned short)
FILL(cuMemsetD32, unsigned)
