/* cuFFT, cuSPARSE and NCCL: handles and versions. What computes is in the generated rest: it says that
 * it was done, and does nothing. */
#include "driver.h"

int cusparseCreate(void **out) { return *out = new_handle(), 0; }
int cufftCreate(int *plan) { return *plan = 1, 0; }
int cufftPlan1d(int *plan, int n, int type, int batch) { return *plan = 1, 0; }

int ncclGetVersion(int *version) { return *version = 22501, 0; }
const char *ncclGetErrorString(int code) { return "a status of the stand-in"; }
int ncclGetUniqueId(char id[128]) { return 0; }
int ncclCommInitRank(void **comm, int ranks, ...) { return *comm = new_handle(), 0; }
int ncclCommInitRankConfig(void **comm, int ranks, ...) { return *comm = new_handle(), 0; }
int ncclCommInitAll(void **comms, int number, const int *devices) {
    for (int i = 0; i < number; i++) comms[i] = new_handle();
    return 0;
}
int ncclCommGetAsyncError(void *comm, int *code) { return *code = 0, 0; }
