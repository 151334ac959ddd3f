#include "kernels.h"

#include <pthread.h>
#include <string.h>

#include "machine.h"

/* Note a kernel that is launched for the first time. */
static void note_first(const char *name) {
    enum { KNOWN = 1024 };
    static const char *known[KNOWN];
    static int count;
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    int i = 0;
    while (i < count && strcmp(known[i], name)) i++;
    if (i == count && count < KNOWN) {
        known[count++] = strdup(name);
        note("no kernel %.400s", name);
    }
    pthread_mutex_unlock(&mutex);
}

void run_kernel(const char *name, Dim grid, Dim block, void **arguments) {
    note_first(name);
}
