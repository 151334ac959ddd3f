/* The machine that the stand-in plays: its cards, and the programs that its description makes up.
 *
 * A card is what a program can open: a GPU, or a MIG instance of one. The description is the file
 * `machine` in the directory that the variable STANDIN names. One fact per line; a line belongs to
 * the last gpu or instance above it:
 *
 *   driver 570.86.10            init 0              (what nvmlInit returns)
 *   cuda 12050                  (the newest CUDA that the driver knows)
 *   context 268435456           (bytes that a context takes of its card)
 *   workspace 0                 (bytes that each convolution asks for)
 *   handle 0                    (bytes that a handle of cuBLAS or cuDNN takes of its card)
 *   peers 1                     (cards reach each other's memory)
 *   computes 1                  (kernels are computed; 0: they do nothing. A program's own
 *                               variable STANDIN_COMPUTES comes before it)
 *   gpu GPU-1234                instance 0 MIG-5678 (its slot, then its UUID)
 *   name NVIDIA A100            memory 42949672960 536870912 1048576   (total, reserved, used)
 *   compute 8 0                 mig 1               (MIG mode is on)
 *   processors 108              (streaming multiprocessors)
 *   error 15                    (what every call of NVML on it returns)
 *   list_error 4                (what the process lists return)
 *   memory_v2 0                 (an older driver: no second version of the memory call)
 *   process C 4242 1073741824   (C compute, G graphics, M a client of MPS; -1: not available)
 */
#pragma once
#include <sys/types.h>

typedef unsigned long long u64;
enum { CARDS = 32, PROCESSES = 64, TEXT = 96 };

/* A program that the description makes up. */
typedef struct {
    char kind;
    unsigned pid;
    u64 bytes;
} Process;

typedef struct {
    int gpu, slot; /* the GPU's index; the slot is -1 for a whole GPU */
    char uuid[TEXT], name[TEXT];
    u64 total, reserved, used; /* used: by the programs that the description makes up */
    int major, minor, processors, mig, error, list_error, memory_v2, count;
    Process processes[PROCESSES];
} Card;

typedef struct {
    int described; /* 0: there is no description, and so no driver */
    char driver[TEXT];
    int init, cuda, gpus, count, peers, computes;
    u64 context, workspace, handle;
    Card cards[CARDS];
} Machine;

/* As described now. The record belongs to the thread, and is overwritten by its next call. */
const Machine *read_machine(void);

/* The cards that CUDA_VISIBLE_DEVICES lets through, in its order; how many. */
int visible_cards(Card out[CARDS]);

/* The path of a file in the directory of the machine; NULL where there is none. */
const char *machine_file(const char *name, char path[4096]);

/* A line in the file `log`, after the number of the process. */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
