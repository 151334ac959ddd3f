#define _GNU_SOURCE
#include "ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    pid_t pid; /* 0: the entry is free */
    u64 started, bytes;
    char uuid[TEXT];
} Entry;

static Entry *entries;
static int ledger = -1;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* When the process started, in ticks since the boot; 0 if it is gone or a zombie, which holds nothing. */
static u64 started(pid_t pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0) return 0;
    text[size] = 0;
    char *fields = strrchr(text, ')'), state = 'Z';
    if (!fields) return 0;
    sscanf(fields + 1, " %c", &state);
    /* The state is the third field, the start the twenty-second. */
    char *rest = fields + 2, *field = NULL;
    for (int i = 3; i <= 22; i++) field = strsep(&rest, " ");
    return field && state != 'Z' && state != 'X' ? strtoull(field, NULL, 10) : 0;
}

static void open_ledger(void) {
    char path[4096];
    size_t size = HOLDERS * sizeof(Entry);
    if (!machine_file("ledger", path)) abort();
    ledger = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (ledger < 0 || ftruncate(ledger, (off_t)size) < 0) abort();
    entries = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, ledger, 0);
    if (entries == MAP_FAILED) abort();
}

static void lock_file(short type) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET};
    while (fcntl(ledger, F_SETLKW, &lock) < 0)
        if (errno != EINTR) abort();
}

/* Opens the ledger for this process alone, and strikes out the dead. */
static void lock_ledger(void) {
    pthread_mutex_lock(&mutex);
    if (ledger < 0) open_ledger();
    lock_file(F_WRLCK);
    for (int i = 0; i < HOLDERS; i++)
        if (entries[i].pid && started(entries[i].pid) != entries[i].started) entries[i] = (Entry){0};
}

static void unlock_ledger(void) {
    lock_file(F_UNLCK);
    pthread_mutex_unlock(&mutex);
}

static int is_of(const Entry *entry, const Card *card) { return entry->pid && !strcmp(entry->uuid, card->uuid); }

static u64 sum(const Card *card) {
    u64 bytes = 0;
    for (int i = 0; i < HOLDERS; i++)
        if (is_of(&entries[i], card)) bytes += entries[i].bytes;
    return bytes;
}

/* This process's entry for the card, made where there is none. */
static Entry *own_entry(const Card *card) {
    Entry *unused = NULL;
    for (int i = 0; i < HOLDERS; i++) {
        if (is_of(&entries[i], card) && entries[i].pid == getpid()) return &entries[i];
        if (!unused && !entries[i].pid) unused = &entries[i];
    }
    if (!unused) abort();
    *unused = (Entry){.pid = getpid(), .started = started(getpid())};
    snprintf(unused->uuid, TEXT, "%s", card->uuid);
    return unused;
}

/* What the programs that the description makes up hold by now. */
static u64 made_up(const Card *card) {
    const Machine *m = read_machine();
    for (int i = 0; i < m->count; i++)
        if (!strcmp(m->cards[i].uuid, card->uuid)) return m->cards[i].used;
    return card->used;
}

static u64 room(const Card *card) {
    u64 used = sum(card) + made_up(card), usable = card->total - card->reserved;
    return used < usable ? usable - used : 0;
}

int take(const Card *card, u64 bytes) {
    lock_ledger();
    int fits = bytes <= room(card);
    if (fits) own_entry(card)->bytes += bytes;
    unlock_ledger();
    return fits ? 0 : -1;
}

void give_back(const Card *card, u64 bytes) {
    lock_ledger();
    own_entry(card)->bytes -= bytes;
    unlock_ledger();
}

u64 left_on(const Card *card) {
    lock_ledger();
    u64 bytes = room(card);
    unlock_ledger();
    return bytes;
}

int holdings(const Card *card, Holding out[HOLDERS]) {
    int count = 0;
    lock_ledger();
    for (int i = 0; i < HOLDERS; i++)
        if (is_of(&entries[i], card)) out[count++] = (Holding){entries[i].pid, entries[i].bytes};
    unlock_ledger();
    return count;
}
