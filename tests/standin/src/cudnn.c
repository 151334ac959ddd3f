/* libcudnn.so.9: convolutions through its graphs, and what else TensorFlow needs to lay out its memory.
 * Nothing of it is computed. Recurrent layers are in cudnn_rnn.c. */
#include <stdint.h>
#include <stdlib.h>

#include "driver.h"

#define MADE(name) \
    int name(void **out) { return *out = new_handle(), 0; }
#define ENDED(name) \
    int name(void *descriptor) { return free(descriptor), 0; }
#define BOTH(noun) MADE(cudnnCreate##noun##Descriptor) ENDED(cudnnDestroy##noun##Descriptor)

enum { DEVICE_ALLOCATION_FAILED = 4004 };

int cudnnCreate(void **out) { return (*out = new_library_handle()) ? 0 : DEVICE_ALLOCATION_FAILED; }
size_t cudnnGetVersion(void) { return 90300; }
size_t cudnnGetCudartVersion(void) { return CUDA_VERSION; }
int cudnnGetProperty(int which, int *value) { return *value = which == 0 ? 9 : which == 1 ? 3 : 0, 0; }
const char *cudnnGetErrorString(int code) { return "a status of the stand-in"; }
BOTH(Tensor) BOTH(Filter) BOTH(Convolution) BOTH(Pooling) BOTH(Activation) BOTH(Dropout)
BOTH(CTCLoss) BOTH(LRN) BOTH(OpTensor)

/* ---- graphs: one engine for whatever is asked, with the workspace that the machine says ---- */

/* After the knobs of an engine come notes on it. */
enum { KNOB_CHOICES = 302, PLAN_WORKSPACE = 402, KNOBS = 1302, OF_INT64 = 3 };

int cudnnBackendCreateDescriptor(int kind, void **out) { return *out = new_handle(), 0; }
int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t room, int64_t *count, void *out) {
    int64_t found = !(name == KNOB_CHOICES || name >= KNOBS);
    if (out && room && type == OF_INT64) *(int64_t *)out = name == PLAN_WORKSPACE ? (int64_t)read_machine()->workspace : 0;
    if (count) *count = found;
    return 0;
}

int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *h, int m, int o, void *x, void *z, void *y, void *b,
                                                             void *a, size_t *size) {
    return *size = 0, 0;
}
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *h, int m, int o, void *x, void *y, void *dy, void *dz, void *dx,
                                                      void *b, void *a, size_t *size) {
    return *size = 0, 0;
}
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *h, int m, int o, void *a, void *x, size_t *size) {
    return *size = 0, 0;
}
int cudnnDropoutGetStatesSize(void *handle, size_t *size) { return *size = 4096, 0; }
