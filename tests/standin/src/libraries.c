/* cuBLAS, cuFFT, cuSPARSE, cuSOLVER, NCCL: handles and versions. What computes is in the
 * generated rest, says that it was done and does nothing. */
#include <stdlib.h>

#include "driver.h"

static int make(void **out) { return *out = calloc(1, 1024), 0; }
#define MADE(name) \
    int name(void **out) { return make(out); }

MADE(cublasCreate_v2)
MADE(cublasLtCreate)
int cublasGetVersion_v2(void *handle, int *version) { return *version = 120503, 0; }
size_t cublasLtGetVersion(void) { return 120503; }
int cublasGetMathMode(void *handle, int *mode) { return *mode = 0, 0; }
int cublasGetPointerMode_v2(void *handle, int *mode) { return *mode = 0, 0; }
int cublasGetStream_v2(void *handle, void **stream) { return *stream = NULL, 0; }
const char *cublasGetStatusString(int code) { return "a status of the stand-in"; }

MADE(cusparseCreate)
int cufftCreate(int *plan) { return *plan = 1, 0; }
int cufftPlan1d(int *plan, int n, int type, int batch) { return *plan = 1, 0; }

int ncclGetVersion(int *version) { return *version = 22501, 0; }
const char *ncclGetErrorString(int code) { return "a status of the stand-in"; }
int ncclGetUniqueId(char id[128]) { return 0; }
int ncclCommInitRank(void **comm, int ranks, ...) { return make(comm); }
int ncclCommInitRankConfig(void **comm, int ranks, ...) { return make(comm); }
int ncclCommInitAll(void **comms, int number, const int *devices) {
    for (int i = 0; i < number; i++) make(&comms[i]);
    return 0;
}
int ncclCommGetAsyncError(void *comm, int *code) { return *code = 0, 0; }
