#define _GNU_SOURCE
#include "machine.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *machine_file(const char *name, char path[4096]) {
    const char *directory = getenv("STANDIN");
    if (!directory || !*directory) return NULL;
    snprintf(path, 4096, "%s/%s", directory, name);
    return path;
}

void note(const char *format, ...) {
    char path[4096], line[512];
    if (!machine_file("log", path)) return;
    int size = snprintf(line, sizeof line, "%d ", (int)getpid());
    va_list args;
    va_start(args, format);
    size += vsnprintf(line + size, sizeof line - (size_t)size - 1, format, args);
    va_end(args);
    if (size > (int)sizeof line - 2) size = sizeof line - 2;
    line[size++] = '\n';
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) return;
    if (write(file, line, (size_t)size) < 0) abort();
    close(file);
}

/* ---- the description ---- */

static Card *add_card(Machine *m, int slot, const char *uuid) {
    if (m->count == CARDS) abort();
    Card *card = &m->cards[m->count++];
    card->gpu = m->gpus - 1;
    card->slot = slot;
    card->memory_v2 = 1;
    card->processors = 108;
    snprintf(card->uuid, TEXT, "%s", uuid);
    return card;
}

static void read_fact(Card *card, const char *line) {
    Process p;
    long long bytes;
    if (!strncmp(line, "name ", 5)) snprintf(card->name, TEXT, "%.95s", line + 5);
    sscanf(line, "memory %llu %llu %llu", &card->total, &card->reserved, &card->used);
    sscanf(line, "compute %d %d", &card->major, &card->minor);
    sscanf(line, "processors %d", &card->processors);
    sscanf(line, "mig %d", &card->mig);
    sscanf(line, "error %d", &card->error);
    sscanf(line, "list_error %d", &card->list_error);
    sscanf(line, "memory_v2 %d", &card->memory_v2);
    if (sscanf(line, "process %c %u %lld", &p.kind, &p.pid, &bytes) == 3) {
        if (card->count == PROCESSES) abort();
        p.bytes = (u64)bytes;
        card->processes[card->count++] = p;
    }
}

const Machine *read_machine(void) {
    static __thread Machine m;
    char path[4096], line[256], uuid[TEXT];
    memset(&m, 0, sizeof m);
    m.context = 256 << 20;
    m.peers = m.computes = 1;
    m.cuda = 12050;
    FILE *file = machine_file("machine", path) ? fopen(path, "r") : NULL;
    if (!file) return &m;
    m.described = 1;
    Card *card = NULL, *gpu = NULL;
    int slot;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "gpu %95s", uuid) == 1) {
            m.gpus++;
            card = gpu = add_card(&m, -1, uuid);
        } else if (gpu && sscanf(line, "instance %d %95s", &slot, uuid) == 2) {
            card = add_card(&m, slot, uuid);
            card->major = gpu->major;
            card->minor = gpu->minor;
        } else if (card) {
            read_fact(card, line);
        } else {
            sscanf(line, "driver %95s", m.driver);
            sscanf(line, "init %d", &m.init);
            sscanf(line, "cuda %d", &m.cuda);
            sscanf(line, "context %llu", &m.context);
            sscanf(line, "workspace %llu", &m.workspace);
            sscanf(line, "handle %llu", &m.handle);
            sscanf(line, "peers %d", &m.peers);
            sscanf(line, "computes %d", &m.computes);
        }
    }
    fclose(file);
    const char *wish = getenv("STANDIN_COMPUTES");
    if (wish) m.computes = atoi(wish);
    return &m;
}

/* ---- what CUDA sees of it ---- */

/* Without a wish, a driver shows the GPUs that are not in MIG mode; if all are, one instance. */
static int shown_cards(const Machine *m, const Card *out[CARDS]) {
    int count = 0;
    for (int i = 0; i < m->count; i++)
        if (m->cards[i].slot < 0 && !m->cards[i].mig) out[count++] = &m->cards[i];
    for (int i = 0; i < m->count && !count; i++)
        if (m->cards[i].slot >= 0) out[count++] = &m->cards[i];
    return count;
}

/* The card that a word of CUDA_VISIBLE_DEVICES means: an index, the beginning of a GPU's UUID that
 * fits no other, or the whole name of an instance. */
static const Card *find_wished(const Machine *m, const Card *shown[], int count, const char *word) {
    char *end;
    long index = strtol(word, &end, 10);
    if (end != word && (!*end || *end == ' ')) return index >= 0 && index < count ? shown[index] : NULL;
    const Card *found = NULL;
    if (!strncmp(word, "GPU-", 4)) {
        for (int i = 0; i < count; i++) {
            if (shown[i]->slot >= 0 || strncmp(shown[i]->uuid, word, strlen(word))) continue;
            if (found) return NULL;
            found = shown[i];
        }
    } else if (!strncmp(word, "MIG-", 4)) {
        for (int i = 0; i < m->count; i++)
            if (m->cards[i].slot >= 0 && !strcmp(m->cards[i].uuid, word)) found = &m->cards[i];
    }
    return found;
}

/* As a real driver reads it: a word that names no card ends the list, a card that is named twice
 * leaves none, and an instance stands alone. */
int visible_cards(Card out[CARDS]) {
    const Machine *m = read_machine();
    const Card *shown[CARDS];
    int shown_count = shown_cards(m, shown), count = 0;
    const char *wish = getenv("CUDA_VISIBLE_DEVICES");
    if (!wish) {
        for (; count < shown_count; count++) out[count] = *shown[count];
        return count;
    }
    char copy[1024], *rest = copy, *word;
    snprintf(copy, sizeof copy, "%s", wish);
    while ((word = strsep(&rest, ","))) {
        const Card *found = find_wished(m, shown, shown_count, word + strspn(word, " "));
        if (!found) break;
        for (int i = 0; i < count; i++)
            if (!strcmp(out[i].uuid, found->uuid)) return 0;
        if (found->slot >= 0) return out[0] = *found, 1;
        out[count++] = *found;
    }
    return count;
}
