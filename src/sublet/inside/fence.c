/* A libcuda.so.1 that stands before the driver's own and holds all processes of a lease to it.
 *
 * It needs the driver's library by its path, so whatever is not written here is the driver's own
 * function. What allocates memory of a card is written here: it is counted, for all processes of the
 * lease together, and refused or kept waiting where it does not fit.
 *
 * The count is in a file of the attempt's directory, which SUBLET_FENCE_FILE names and the broker has
 * made (formats/fence_file.py). Without it, or if it is of another version, everything is forwarded.
 * Wherever something is in doubt, the fence allows. Contexts and kernel images are not seen here: the
 * bound has room for them.
 *
 * Built with VERSION, the version of this source, and DRIVER, the path of the driver's library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
typedef int Result;  /* CUresult */
typedef u64 Pointer; /* CUdeviceptr, or the handle of physical memory */
typedef void *Context;

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, NOT_SUPPORTED = 801 };

/* ---- the driver ---- */

Result cuMemAlloc_v2(Pointer *at, size_t bytes);
Result cuMemAllocPitch_v2(Pointer *at, size_t *pitch, size_t width, size_t height, unsigned element);
Result cuMemAllocManaged(Pointer *at, size_t bytes, unsigned flags);
Result cuMemFree_v2(Pointer at);
Result cuMemAllocAsync(Pointer *at, size_t bytes, void *stream);
Result cuMemAllocAsync_ptsz(Pointer *at, size_t bytes, void *stream);
Result cuMemAllocFromPoolAsync(Pointer *at, size_t bytes, void *pool, void *stream);
Result cuMemAllocFromPoolAsync_ptsz(Pointer *at, size_t bytes, void *pool, void *stream);
Result cuMemFreeAsync(Pointer at, void *stream);
Result cuMemFreeAsync_ptsz(Pointer at, void *stream);
Result cuMemCreate(Pointer *handle, size_t bytes, const int *properties, u64 flags);
Result cuMemRelease(Pointer handle);
Result cuMemGetInfo_v2(size_t *left, size_t *total);
Result cuDeviceTotalMem_v2(size_t *bytes, int device);
Result cuCtxDestroy_v2(Context context);
Result cuDevicePrimaryCtxRetain(Context *context, int device);
Result cuDevicePrimaryCtxRelease_v2(int device);
Result cuDevicePrimaryCtxReset_v2(int device);
Result cuGetProcAddress(const char *symbol, void **function, int version, u64 flags);
Result cuGetProcAddress_v2(const char *symbol, void **function, int version, u64 flags, int *status);

/* What is written here: the name under which cuGetProcAddress knows it, since which version of CUDA
 * in this form, and whether it is the form for streams of each thread's own. */
#define FENCED(X)                                                          \
    X(cuMemAlloc, 3020, 0, cuMemAlloc_v2)                                  \
    X(cuMemAllocPitch, 3020, 0, cuMemAllocPitch_v2)                        \
    X(cuMemAllocManaged, 6000, 0, cuMemAllocManaged)                       \
    X(cuMemFree, 3020, 0, cuMemFree_v2)                                    \
    X(cuMemAllocAsync, 11020, 0, cuMemAllocAsync)                          \
    X(cuMemAllocAsync, 11020, 1, cuMemAllocAsync_ptsz)                     \
    X(cuMemAllocFromPoolAsync, 11020, 0, cuMemAllocFromPoolAsync)          \
    X(cuMemAllocFromPoolAsync, 11020, 1, cuMemAllocFromPoolAsync_ptsz)     \
    X(cuMemFreeAsync, 11020, 0, cuMemFreeAsync)                            \
    X(cuMemFreeAsync, 11020, 1, cuMemFreeAsync_ptsz)                       \
    X(cuMemCreate, 10020, 0, cuMemCreate)                                  \
    X(cuMemRelease, 10020, 0, cuMemRelease)                                \
    X(cuMemGetInfo, 3020, 0, cuMemGetInfo_v2)                              \
    X(cuDeviceTotalMem, 3020, 0, cuDeviceTotalMem_v2)                      \
    X(cuCtxDestroy, 4000, 0, cuCtxDestroy_v2)                              \
    X(cuDevicePrimaryCtxRetain, 7000, 0, cuDevicePrimaryCtxRetain)         \
    X(cuDevicePrimaryCtxRelease, 11000, 0, cuDevicePrimaryCtxRelease_v2)   \
    X(cuDevicePrimaryCtxReset, 11000, 0, cuDevicePrimaryCtxReset_v2)       \
    X(cuGetProcAddress, 11030, 0, cuGetProcAddress)                        \
    X(cuGetProcAddress, 12000, 0, cuGetProcAddress_v2)

static struct {
#define DECLARE(symbol, version, threads, name) __typeof__(name) *name;
    FENCED(DECLARE)
    Result (*cuCtxGetCurrent)(Context *);
    Result (*cuDevicePrimaryCtxGetState)(int, unsigned *, int *);
} driver;

static const char *missing; /* a function that the driver should have and has not */

static void *of_driver(void *library, const char *name) {
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) missing = name;
    return found;
}

static void find_driver(void) {
    void *library = dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL);
#define FIND(symbol, version, threads, name) driver.name = of_driver(library, #name);
    FENCED(FIND)
    driver.cuCtxGetCurrent = of_driver(library, "cuCtxGetCurrent");
    driver.cuDevicePrimaryCtxGetState = of_driver(library, "cuDevicePrimaryCtxGetState");
}

/* For whoever looks whether this library fits the broker and the driver. */
const char *sublet_fence_version(void) { return VERSION; }
const char *sublet_fence_missing(void) { return missing; }

/* ---- what the processes of the lease hold ---- */

enum { PAGE = 4096, SLOTS = PAGE / 16, PID_BITS = 22 };
static const u64 MILLISECOND = 1000000, PATIENCE = 10000, HASTE = 100;

/* The file: a page that the broker alone writes, and a page with a slot for each process. */
typedef struct {
    char version[16];
    _Atomic u64 bound, unbound; /* the second is the first with all bits inverted, or both are being written */
    u64 most;                   /* what the bound may be raised to */
    u64 told;                   /* how large a card programs are told of */
} Terms;

typedef struct {
    _Atomic u64 owner; /* the process: its start in ticks since the boot, then its number; 0: free */
    _Atomic u64 held;  /* written by the owner alone */
} Slot;

static const Terms *terms;
static Slot *slots;
static _Atomic(Slot *) own;
static atomic_int none_left; /* so this process is not counted */
static char directory[PAGE];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* On these, writing to a page of a file may take new space, and a full disk would end the process. */
static int may_run_full(int file) {
    enum { BTRFS = 0x9123683E, ZFS = 0x2FC12FC1, NFS = 0x6969, FUSE = 0x65735546 };
    static const u64 BCACHEFS = 0xCA451A4E, CIFS = 0xFF534D42;
    struct statfs found;
    if (fstatfs(file, &found)) return 1;
    u64 type = (u64)found.f_type & 0xFFFFFFFF;
    return type == BTRFS || type == ZFS || type == NFS || type == FUSE || type == BCACHEFS || type == CIFS;
}

static void open_terms(void) {
    const char *path = getenv("SUBLET_FENCE_FILE"), *name = path ? strrchr(path, '/') : NULL;
    struct stat found;
    if (!name || (size_t)(name - path) >= sizeof directory - 64) return;
    int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) return;
    if (!fstat(file, &found) && S_ISREG(found.st_mode) && found.st_size == 2 * PAGE) {
        /* A private copy still shows what the broker writes; only each process then counts for itself. */
        int flags = may_run_full(file) ? MAP_PRIVATE : MAP_SHARED;
        char *start = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, flags, file, 0);
        if (start != MAP_FAILED && !memcmp(start, VERSION, 16)) {
            memcpy(directory, path, (size_t)(name - path));
            terms = (const Terms *)start;
            slots = (Slot *)(start + PAGE);
        }
    }
    close(file);
}

/* When a process started; 0 if that cannot be said, -1 if it has ended. */
static u64 started(u64 pid) {
    char path[64], text[1024], state = 0;
    unsigned long long start = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return errno == ENOENT ? (u64)-1 : 0;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0) return (u64)-1; /* It has ended since. */
    text[size] = 0;
    char *rest = strrchr(text, ')'); /* its name may have spaces and brackets */
    if (!rest || sscanf(rest + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                        &state, &start) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? (u64)-1 : start;
}

static u64 identity(void) {
    u64 pid = (u64)getpid(), start = started(pid);
    return (start == (u64)-1 ? 0 : start) << PID_BITS | pid;
}

static int lives(u64 owner) {
    u64 start = started(owner & ((1 << PID_BITS) - 1)), known = owner >> PID_BITS;
    return start != (u64)-1 && (!start || !known || start == known);
}

/* Takes over a slot as it is. Whoever is killed right after that has left it to the next one. */
static int take_over(Slot *slot, u64 owner, u64 me) {
    if (!atomic_compare_exchange_strong(&slot->owner, &owner, me)) return 0;
    atomic_store(&slot->held, 0);
    return 1;
}

/* The slot of this process; NULL if there is none left, or no lease. */
static Slot *own_slot(void) {
    Slot *slot = atomic_load(&own);
    if (slot || !slots || atomic_load(&none_left)) return slot;
    pthread_mutex_lock(&mutex);
    slot = atomic_load(&own);
    u64 me = slot ? 0 : identity();
    for (int i = 0; i < SLOTS && !slot; i++) {
        u64 owner = atomic_load(&slots[i].owner);
        if ((!owner || !lives(owner)) && take_over(&slots[i], owner, me)) slot = &slots[i];
    }
    atomic_store(&own, slot);
    atomic_store(&none_left, !slot);
    pthread_mutex_unlock(&mutex);
    return slot;
}

/* Strikes out what dead processes held. */
static void sweep(void) {
    for (int i = 0; i < SLOTS; i++) {
        u64 owner = atomic_load(&slots[i].owner);
        if (owner && !lives(owner) && take_over(&slots[i], owner, identity())) atomic_store(&slots[i].owner, 0);
    }
}

static u64 held(void) {
    u64 bytes = 0;
    for (int i = 0; i < SLOTS; i++) bytes += atomic_load_explicit(&slots[i].held, memory_order_relaxed);
    return bytes;
}

static u64 bound(void) {
    for (int i = 0; i < 1000; i++) {
        u64 one = atomic_load(&terms->bound), other = atomic_load(&terms->unbound);
        if (one == ~other) return one;
    }
    return UINT64_MAX;
}

/* Adds the bytes to what this process holds; 0 if the lease has no room for them. Two processes that try at
 * the same time may both be told so, and try again; they are never both given the same room. */
static int fits(Slot *slot, u64 bytes) {
    atomic_fetch_add(&slot->held, bytes);
    atomic_thread_fence(memory_order_seq_cst);
    if (held() <= bound()) return 1;
    atomic_fetch_sub(&slot->held, bytes);
    return 0;
}

static void give_back(u64 bytes) {
    Slot *slot = own_slot();
    if (slot) atomic_fetch_sub(&slot->held, bytes);
}

/* ---- asking for more ---- */

static u64 milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000 + (u64)now.tv_nsec / MILLISECOND;
}

/* Leaves a file that tells the broker how many bytes are lacking (`attempt_files`). */
static void ask(char path[2 * PAGE], u64 bytes) {
    static atomic_uint count;
    if (*path) unlink(path);
    snprintf(path, 2 * PAGE, "%s/lack-%d-%u-%llu", directory, (int)getpid(), atomic_fetch_add(&count, 1),
             (unsigned long long)bytes);
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file >= 0) close(file);
}

/* Waits until the lease has room, because it was raised or somebody has freed or ended. A process that has
 * waited in vain does not wait long again: an allocator may try many sizes before it gives up. */
static int wait_for_room(Slot *slot, u64 bytes) {
    static _Atomic u64 hasty_until;
    u64 now = milliseconds(), asked = 0, when_asked = 0;
    u64 until = now + (now < atomic_load(&hasty_until) ? HASTE : PATIENCE);
    char path[2 * PAGE] = "";
    int fit = 0;
    while (!fit && milliseconds() < until) {
        u64 wanted = held() + bytes, limit = bound(), lacks = wanted > limit ? wanted - limit : 0;
        /* Asked again if a raise was not enough, or others have taken it. */
        if (lacks > asked || (lacks && limit != when_asked)) ask(path, asked = lacks), when_asked = limit;
        nanosleep(&(struct timespec){.tv_nsec = 2 * (long)MILLISECOND}, NULL);
        sweep();
        fit = fits(slot, bytes);
    }
    if (*path) unlink(path);
    if (!fit) atomic_store(&hasty_until, milliseconds() + PATIENCE);
    return fit;
}

/* Whether the lease has room for so many bytes more. They count from now on. Tried some times: another
 * process may have tried for more than there is at the same moment. */
static int take(u64 bytes) {
    enum { TRIES = 5 };
    Slot *slot = own_slot();
    if (!slot || fits(slot, bytes)) return 1;
    for (int i = 0; i < TRIES; i++) {
        sweep();
        if (fits(slot, bytes)) return 1;
        nanosleep(&(struct timespec){.tv_nsec = (long)MILLISECOND / 5}, NULL);
    }
    return held() + bytes <= terms->most && wait_for_room(slot, bytes);
}

/* ---- what this process has allocated ---- */

typedef struct Block {
    struct Block *next;
    Pointer at;
    u64 bytes;
    Context context; /* with which it ends; NULL for physical memory */
} Block;

enum { BUCKETS = 4096, DEVICES = 64 };
static Block *buckets[BUCKETS];
static Context primary[DEVICES];

static Block **bucket_of(Pointer at) { return &buckets[(at * 0x9E3779B97F4A7C15u) >> 52]; }

static void keep(Pointer at, u64 bytes, Context context) {
    Block *block = own_slot() ? malloc(sizeof *block) : NULL;
    if (!block) {
        give_back(bytes);
        return;
    }
    Block **bucket = bucket_of(at);
    pthread_mutex_lock(&mutex);
    *block = (Block){*bucket, at, bytes, context};
    *bucket = block;
    pthread_mutex_unlock(&mutex);
}

/* Takes out of a list what is at this address or of this context; the bytes of it. */
static u64 drop(Block **link, Pointer at, Context context) {
    u64 bytes = 0;
    while (*link) {
        Block *block = *link;
        if (context ? block->context == context : block->at == at) {
            *link = block->next;
            bytes += block->bytes;
            free(block);
        } else {
            link = &block->next;
        }
    }
    return bytes;
}

static Result freed(Result result, Pointer at) {
    if (!result && slots) {
        pthread_mutex_lock(&mutex);
        u64 bytes = drop(bucket_of(at), at, NULL);
        pthread_mutex_unlock(&mutex);
        give_back(bytes);
    }
    return result;
}

static void context_ended(Context context) {
    if (!context || !slots) return;
    u64 bytes = 0;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < BUCKETS; i++) bytes += drop(&buckets[i], 0, context);
    pthread_mutex_unlock(&mutex);
    give_back(bytes);
}

static Context current(void) {
    Context context = NULL;
    if (driver.cuCtxGetCurrent) driver.cuCtxGetCurrent(&context);
    return context;
}

/* A child has none of its parent's memory. */
static void forked(void) {
    pthread_mutex_init(&mutex, NULL);
    memset(buckets, 0, sizeof buckets);
    atomic_store(&own, NULL);
    atomic_store(&none_left, 0);
}

__attribute__((constructor)) static void begin(void) {
    find_driver();
    open_terms();
    pthread_atfork(NULL, NULL, forked);
}

/* ---- allocations ---- */

#define ALLOCATE(name, at, bytes, context, ...)         \
    if (!driver.name) return NOT_SUPPORTED;             \
    if (!take(bytes)) return OUT_OF_MEMORY;             \
    Result result = driver.name(at, ##__VA_ARGS__);     \
    if (result) give_back(bytes);                       \
    else keep(*(at), bytes, context);                   \
    return result

Result cuMemAlloc_v2(Pointer *at, size_t bytes) { ALLOCATE(cuMemAlloc_v2, at, bytes, current(), bytes); }

Result cuMemAllocManaged(Pointer *at, size_t bytes, unsigned flags) {
    ALLOCATE(cuMemAllocManaged, at, bytes, current(), bytes, flags);
}

/* Rows begin at multiples of the pitch, which the driver chooses: in practice of 512 bytes. */
Result cuMemAllocPitch_v2(Pointer *at, size_t *pitch, size_t width, size_t height, unsigned element) {
    u64 bytes = (width + 511) / 512 * 512 * height;
    ALLOCATE(cuMemAllocPitch_v2, at, bytes, current(), pitch, width, height, element);
}

Result cuMemAllocAsync(Pointer *at, size_t bytes, void *stream) {
    ALLOCATE(cuMemAllocAsync, at, bytes, current(), bytes, stream);
}

Result cuMemAllocAsync_ptsz(Pointer *at, size_t bytes, void *stream) {
    ALLOCATE(cuMemAllocAsync_ptsz, at, bytes, current(), bytes, stream);
}

Result cuMemAllocFromPoolAsync(Pointer *at, size_t bytes, void *pool, void *stream) {
    ALLOCATE(cuMemAllocFromPoolAsync, at, bytes, current(), bytes, pool, stream);
}

Result cuMemAllocFromPoolAsync_ptsz(Pointer *at, size_t bytes, void *pool, void *stream) {
    ALLOCATE(cuMemAllocFromPoolAsync_ptsz, at, bytes, current(), bytes, pool, stream);
}

/* Physical memory, of a card or of the host: the third number of its properties says which. */
Result cuMemCreate(Pointer *handle, size_t bytes, const int *properties, u64 flags) {
    enum { WHERE = 2, ON_DEVICE = 1 };
    if (driver.cuMemCreate && properties && properties[WHERE] != ON_DEVICE)
        return driver.cuMemCreate(handle, bytes, properties, flags);
    ALLOCATE(cuMemCreate, handle, bytes, NULL, bytes, properties, flags);
}

#define FREE(name, at, ...) return driver.name ? freed(driver.name(at, ##__VA_ARGS__), at) : NOT_SUPPORTED

Result cuMemFree_v2(Pointer at) { FREE(cuMemFree_v2, at); }
Result cuMemFreeAsync(Pointer at, void *stream) { FREE(cuMemFreeAsync, at, stream); }
Result cuMemFreeAsync_ptsz(Pointer at, void *stream) { FREE(cuMemFreeAsync_ptsz, at, stream); }
Result cuMemRelease(Pointer handle) { FREE(cuMemRelease, handle); }

/* ---- contexts, with which memory ends ---- */

Result cuCtxDestroy_v2(Context context) {
    if (!driver.cuCtxDestroy_v2) return NOT_SUPPORTED;
    Result result = driver.cuCtxDestroy_v2(context);
    if (!result) context_ended(context);
    return result;
}

Result cuDevicePrimaryCtxRetain(Context *context, int device) {
    if (!driver.cuDevicePrimaryCtxRetain) return NOT_SUPPORTED;
    Result result = driver.cuDevicePrimaryCtxRetain(context, device);
    if (!result && device >= 0 && device < DEVICES) primary[device] = *context;
    return result;
}

static Result left(Result result, int device) {
    unsigned flags;
    int active = 1;
    if (result || device < 0 || device >= DEVICES || !driver.cuDevicePrimaryCtxGetState) return result;
    if (!driver.cuDevicePrimaryCtxGetState(device, &flags, &active) && !active) context_ended(primary[device]);
    return result;
}

Result cuDevicePrimaryCtxRelease_v2(int device) {
    return driver.cuDevicePrimaryCtxRelease_v2 ? left(driver.cuDevicePrimaryCtxRelease_v2(device), device)
                                               : NOT_SUPPORTED;
}

Result cuDevicePrimaryCtxReset_v2(int device) {
    return driver.cuDevicePrimaryCtxReset_v2 ? left(driver.cuDevicePrimaryCtxReset_v2(device), device) : NOT_SUPPORTED;
}

/* ---- what programs are told ---- */

Result cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    if (!driver.cuMemGetInfo_v2) return NOT_SUPPORTED;
    Result result = driver.cuMemGetInfo_v2(free_bytes, total);
    if (!result && terms) {
        sweep();
        u64 used = held(), room = terms->told > used ? terms->told - used : 0;
        if (*total > terms->told) *total = terms->told;
        if (*free_bytes > room) *free_bytes = room;
    }
    return result;
}

Result cuDeviceTotalMem_v2(size_t *bytes, int device) {
    if (!driver.cuDeviceTotalMem_v2) return NOT_SUPPORTED;
    Result result = driver.cuDeviceTotalMem_v2(bytes, device);
    if (!result && terms && *bytes > terms->told) *bytes = terms->told;
    return result;
}

static Result look_up(const char *symbol, void **function, int version, u64 flags, int *status, int second) {
    if (second) return driver.cuGetProcAddress_v2(symbol, function, version, flags, status);
    return driver.cuGetProcAddress(symbol, function, version, flags);
}

/* The driver decides which form of a function is meant: ours is given if the driver gives the same function
 * for the version of CUDA that brought this form. */
static Result look_up_fenced(const char *symbol, void **function, int version, u64 flags, int *status, int second) {
    enum { PER_THREAD = 2 };
    static const struct {
        const char *symbol;
        int version, threads;
        void *function;
    } fenced[] = {
#define ROW(symbol, version, threads, name) {#symbol, version, threads, (void *)name},
        FENCED(ROW)};
    Result result = look_up(symbol, function, version, flags, status, second);
    if (result || !symbol || !function || !*function) return result;
    void *found = *function;
    for (size_t i = 0; i < sizeof fenced / sizeof *fenced; i++) {
        void *known = NULL;
        int ignored, per_thread = (flags & PER_THREAD) != 0;
        if (strcmp(symbol, fenced[i].symbol)) continue;
        if (look_up(symbol, &known, fenced[i].version, flags, &ignored, second) || known != found) continue;
        /* Where there is one form only, it is given for both kinds of streams. */
        if (*function == found || fenced[i].threads == per_thread) *function = fenced[i].function;
    }
    return result;
}

Result cuGetProcAddress(const char *symbol, void **function, int version, u64 flags) {
    if (!driver.cuGetProcAddress) return NOT_SUPPORTED;
    return look_up_fenced(symbol, function, version, flags, NULL, 0);
}

Result cuGetProcAddress_v2(const char *symbol, void **function, int version, u64 flags, int *status) {
    if (!driver.cuGetProcAddress_v2) return NOT_SUPPORTED;
    return look_up_fenced(symbol, function, version, flags, status, 1);
}
