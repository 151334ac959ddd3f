/* libcudnn.so.9: convolutions through its graphs, and recurrent layers: as much as TensorFlow needs
 * to lay out its memory. Nothing is computed. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define MADE(name) \
    int name(void **out) { return *out = new_handle(), 0; }
#define ENDED(name) \
    int name(void *descriptor) { return free(descriptor), 0; }
#define BOTH(noun) MADE(cudnnCreate##noun##Descriptor) ENDED(cudnnDestroy##noun##Descriptor)

MADE(cudnnCreate)
size_t cudnnGetVersion(void) { return 90300; }
size_t cudnnGetCudartVersion(void) { return CUDA_VERSION; }
int cudnnGetProperty(int which, int *value) { return *value = which == 0 ? 9 : which == 1 ? 3 : 0, 0; }
const char *cudnnGetErrorString(int code) { return "a status of the stand-in"; }
BOTH(Tensor) BOTH(Filter) BOTH(Convolution) BOTH(Pooling) BOTH(Activation) BOTH(Dropout) BOTH(RNN) BOTH(RNNData)
BOTH(CTCLoss) BOTH(LRN) BOTH(OpTensor)

/* ---- graphs: one engine for whatever is asked, with a workspace of STANDIN_WORKSPACE bytes ---- */

enum { KNOB_CHOICES = 302, PLAN_WORKSPACE = 402, KNOBS = 1302, OF_INT64 = 3 }; /* after the knobs of an engine: notes on it */

int cudnnBackendCreateDescriptor(int kind, void **out) { return *out = new_handle(), 0; }
int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t room, int64_t *count, void *out) {
    const char *text = getenv("STANDIN_WORKSPACE");
    int64_t found = !(name == KNOB_CHOICES || name >= KNOBS);
    if (out && room && type == OF_INT64) *(int64_t *)out = name == PLAN_WORKSPACE && text ? atoll(text) : 0;
    if (count) *count = found;
    return 0;
}

int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *h, int m, int o, void *x, void *z, void *y, void *b, void *a, size_t *size) { return *size = 0, 0; }
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *h, int m, int o, void *x, void *y, void *dy, void *dz, void *dx, void *b, void *a, size_t *size) { return *size = 0, 0; }
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *h, int m, int o, void *a, void *x, size_t *size) { return *size = 0, 0; }
int cudnnDropoutGetStatesSize(void *handle, size_t *size) { return *size = 4096, 0; }

/* ---- recurrent layers: each gate has a matrix and a bias, those of the input before the others ---- */

typedef struct { int dims[3], type; } Tensor;
typedef struct { int gates, directions, type, input, hidden, projection, layers; } Rnn;

static size_t width(int type) { return type == 1 ? 8 : type == 2 || type == 9 ? 2 : 4; }

int cudnnSetRNNDescriptor_v8(Rnn *rnn, int algorithm, int cell, int bias, int direction, int skip, int type, int precision, int math, int input,
                             int hidden, int projection, int layers, void *dropout, unsigned flags) {
    *rnn = (Rnn){cell == 2 ? 4 : cell == 3 ? 3 : 1, direction + 1, type, input, hidden, projection, layers};
    return 0;
}

/* TensorFlow asks for the projection and passes NULL for much of the rest. */
int cudnnGetRNNDescriptor_v8(Rnn *rnn, int *algorithm, int *cell, int *bias, int *direction, int *skip, int *type, int *precision, int *math, int *input,
                             int *hidden, int *projection, int *layers, void **dropout, unsigned *flags) {
    struct { int *at, value; } facts[] = {
        {algorithm, 0}, {cell, rnn->gates == 4 ? 2 : rnn->gates == 3 ? 3 : 1}, {bias, 0}, {direction, rnn->directions - 1}, {skip, 0},
        {type, rnn->type}, {precision, rnn->type}, {math, 0}, {input, rnn->input}, {hidden, rnn->hidden}, {projection, rnn->projection},
        {layers, rnn->layers}};
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        if (facts[i].at) *facts[i].at = facts[i].value;
    return 0;
}

static int columns(const Rnn *rnn, int pseudo, int region) {
    if (region >= rnn->gates) return rnn->projection;
    return pseudo < rnn->directions ? rnn->input : rnn->projection * rnn->directions;
}

/* Elements before this region; of the region after the last: all. */
static size_t before(const Rnn *rnn, int pseudo, int region) {
    size_t size = 0;
    for (int p = 0; p <= pseudo; p++)
        for (int r = 0; r < 2 * rnn->gates && (p < pseudo || r < region); r++)
            size += (size_t)rnn->hidden * (size_t)(columns(rnn, p, r) + 1);
    return size;
}

int cudnnGetRNNWeightSpaceSize(void *handle, const Rnn *rnn, size_t *size) {
    return *size = before(rnn, rnn->layers * rnn->directions, 0) * width(rnn->type), 0;
}

int cudnnGetRNNWeightParams(void *handle, const Rnn *rnn, int pseudo, size_t size, char *weights, int region, Tensor *m, char **m_at, Tensor *b, char **b_at) {
    *m_at = *b_at = NULL;
    if (region >= 2 * rnn->gates) return 0;
    int wide = columns(rnn, pseudo, region);
    *m = (Tensor){{1, rnn->hidden, wide}, rnn->type};
    *b = (Tensor){{1, rnn->hidden, 1}, rnn->type};
    *m_at = weights + before(rnn, pseudo, region) * width(rnn->type);
    *b_at = *m_at + (size_t)(rnn->hidden * wide) * width(rnn->type);
    return 0;
}

int cudnnGetTensorNdDescriptor(const Tensor *tensor, int room, int *type, int *count, int *dims, int *strides) {
    *type = tensor->type, *count = 3;
    for (int i = 0; i < 3 && i < room; i++) dims[i] = tensor->dims[i], strides[i] = 1;
    return 0;
}

int cudnnGetRNNTempSpaceSizes(void *handle, const Rnn *rnn, int mode, void *x, size_t *work, size_t *reserve) { return *work = *reserve = 1 << 20, 0; }
