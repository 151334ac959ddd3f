/* NCCL within one process: communicators, and an all-reduce that adds up (float, double, int32 and
 * int64). Each rank calls from a thread of its own and waits there for the others, so results are
 * there when the call returns, as with kernels. Other collectives are in the generated rest, and do
 * nothing. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

enum { RANKS = CARDS, INT32 = 2, INT64 = 4, FLOAT = 7, DOUBLE = 8, SUM = 0, INVALID_USAGE = 5 };

typedef struct {
    char bytes[128];
} UniqueId;

/* The ranks that reduce together. */
typedef struct Clique {
    struct Clique *next;
    UniqueId id;
    int ranks, arrived;
    unsigned round;
    const void *from[RANKS];
    void *to[RANKS];
    pthread_cond_t turned;
} Clique;

typedef struct {
    Clique *clique;
    int rank;
} Comm;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Clique *cliques;

static Clique *find_clique(const UniqueId *id, int ranks) {
    Clique *one = cliques;
    while (one && memcmp(&one->id, id, sizeof *id)) one = one->next;
    if (one) return one;
    one = calloc(1, sizeof *one);
    if (!one) abort();
    *one = (Clique){.next = cliques, .id = *id, .ranks = ranks};
    pthread_cond_init(&one->turned, NULL);
    return cliques = one;
}

int ncclGetVersion(int *version) { return *version = 22501, 0; }
const char *ncclGetErrorString(int code) { return "a status of the stand-in"; }
int ncclCommGetAsyncError(void *comm, int *code) { return *code = 0, 0; }

int ncclGetUniqueId(UniqueId *id) {
    static unsigned number;
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "%d %u", (int)getpid(), __atomic_add_fetch(&number, 1, __ATOMIC_SEQ_CST));
    return SUCCESS;
}

int ncclCommInitRank(void **out, int ranks, UniqueId id, int rank) {
    if (ranks < 1 || ranks > RANKS || rank < 0 || rank >= ranks) return INVALID_USAGE;
    Comm *comm = malloc(sizeof *comm);
    if (!comm) abort();
    pthread_mutex_lock(&lock);
    *comm = (Comm){find_clique(&id, ranks), rank};
    pthread_mutex_unlock(&lock);
    return *out = comm, SUCCESS;
}

int ncclCommInitRankConfig(void **out, int ranks, UniqueId id, int rank, void *config) {
    return ncclCommInitRank(out, ranks, id, rank);
}

int ncclCommInitAll(void **comms, int ranks, const int *devices) {
    UniqueId id;
    ncclGetUniqueId(&id);
    for (int i = 0; i < ranks; i++) ncclCommInitRank(&comms[i], ranks, id, i);
    return SUCCESS;
}

#define ADD_UP(type)                                                               \
    for (size_t at = 0; at < count; at++) {                                        \
        type sum = 0;                                                              \
        for (int rank = 0; rank < c->ranks; rank++) sum += ((const type *)c->from[rank])[at]; \
        for (int rank = 0; rank < c->ranks; rank++) ((type *)c->to[rank])[at] = sum; \
    }

static int add_up(const Clique *c, size_t count, int type) {
    switch (type) {
        case INT32: ADD_UP(int32_t); break;
        case INT64: ADD_UP(int64_t); break;
        case FLOAT: ADD_UP(float); break;
        case DOUBLE: ADD_UP(double); break;
        default: return 0;
    }
    return 1;
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, void *comm, void *stream) {
    Clique *c = ((Comm *)comm)->clique;
    int rank = ((Comm *)comm)->rank;
    pthread_mutex_lock(&lock);
    c->from[rank] = from;
    c->to[rank] = to;
    if (++c->arrived == c->ranks) {
        int computes = read_machine()->computes;
        if (computes && (operation != SUM || !add_up(c, count, type)))
            note("not computed ncclAllReduce type %d operation %d", type, operation);
        note("ncclAllReduce %zu", count);
        c->arrived = 0;
        c->round++;
        pthread_cond_broadcast(&c->turned);
    } else {
        for (unsigned round = c->round; round == c->round;) pthread_cond_wait(&c->turned, &lock);
    }
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
