/* libcudnn.so.9: recurrent layers, on the host: LSTM and GRU, of one layer and direction, in float32.
 * Others are laid out and not computed.
 *
 * Each gate has a matrix and a bias for the input, and one of both for the state. The weights are all
 * matrices, those for the input first, and then all biases: Keras relies on that. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

enum { CELL_LSTM = 2, CELL_GRU = 3, OF_FLOAT = 0, BATCH_MAJOR = 2 };

typedef struct {
    int cell, gates, directions, type, input, hidden, projection, layers;
} Rnn;

typedef struct {
    int layout, steps, batch, width;
} Sequence;

typedef struct {
    int dims[3], type;
} Tensor;

int cudnnCreateRNNDescriptor(void **out) { return *out = new_handle(), 0; }
int cudnnDestroyRNNDescriptor(void *descriptor) { return free(descriptor), 0; }
int cudnnCreateRNNDataDescriptor(void **out) { return *out = new_handle(), 0; }
int cudnnDestroyRNNDataDescriptor(void *descriptor) { return free(descriptor), 0; }

int cudnnSetRNNDescriptor_v8(Rnn *rnn, int algorithm, int cell, int bias, int direction, int skip, int type,
                             int precision, int math, int input, int hidden, int projection, int layers,
                             void *dropout, unsigned flags) {
    int gates = cell == CELL_LSTM ? 4 : cell == CELL_GRU ? 3 : 1;
    *rnn = (Rnn){cell, gates, direction + 1, type, input, hidden, projection, layers};
    return 0;
}

/* TensorFlow asks for the projection, and passes NULL for much of the rest. */
int cudnnGetRNNDescriptor_v8(Rnn *rnn, int *algorithm, int *cell, int *bias, int *direction, int *skip, int *type,
                             int *precision, int *math, int *input, int *hidden, int *projection, int *layers,
                             void **dropout, unsigned *flags) {
    struct {
        int *at, value;
    } facts[] = {{algorithm, 0}, {cell, rnn->cell}, {bias, 0}, {direction, rnn->directions - 1}, {skip, 0},
                 {type, rnn->type}, {precision, rnn->type}, {math, 0}, {input, rnn->input}, {hidden, rnn->hidden},
                 {projection, rnn->projection}, {layers, rnn->layers}};
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        if (facts[i].at) *facts[i].at = facts[i].value;
    return 0;
}

int cudnnSetRNNDataDescriptor(Sequence *out, int type, int layout, int steps, int batch, int width, const int *lengths,
                              void *fill) {
    return *out = (Sequence){layout, steps, batch, width}, 0;
}

/* ---- where the weights are ---- */

static size_t width_of(int type) { return type == 1 ? 8 : type == 2 || type == 9 ? 2 : 4; }

static int columns(const Rnn *rnn, int pseudo, int region) {
    if (region >= rnn->gates) return rnn->projection;
    return pseudo < rnn->directions ? rnn->input : rnn->projection * rnn->directions;
}

/* Elements of the matrices before this one; of the layer after the last: of all. */
static size_t matrices_before(const Rnn *rnn, int pseudo, int region) {
    size_t size = 0;
    for (int p = 0; p <= pseudo; p++)
        for (int r = 0; r < 2 * rnn->gates && (p < pseudo || r < region); r++)
            size += (size_t)rnn->hidden * (size_t)columns(rnn, p, r);
    return size;
}

static size_t all_matrices(const Rnn *rnn) { return matrices_before(rnn, rnn->layers * rnn->directions, 0); }

static size_t bias_at(const Rnn *rnn, int pseudo, int region) {
    return all_matrices(rnn) + (size_t)((pseudo * 2 * rnn->gates + region) * rnn->hidden);
}

int cudnnGetRNNWeightSpaceSize(void *handle, const Rnn *rnn, size_t *size) {
    return *size = bias_at(rnn, rnn->layers * rnn->directions, 0) * width_of(rnn->type), 0;
}

int cudnnGetRNNWeightParams(void *handle, const Rnn *rnn, int pseudo, size_t size, char *weights, int region, Tensor *m,
                            char **m_at, Tensor *b, char **b_at) {
    *m_at = *b_at = NULL;
    if (region >= 2 * rnn->gates) return 0;
    *m = (Tensor){{1, rnn->hidden, columns(rnn, pseudo, region)}, rnn->type};
    *b = (Tensor){{1, rnn->hidden, 1}, rnn->type};
    *m_at = weights + matrices_before(rnn, pseudo, region) * width_of(rnn->type);
    *b_at = weights + bias_at(rnn, pseudo, region) * width_of(rnn->type);
    return 0;
}

int cudnnGetTensorNdDescriptor(const Tensor *tensor, int room, int *type, int *count, int *dims, int *strides) {
    *type = tensor->type, *count = 3;
    for (int i = 0; i < 3 && i < room; i++) dims[i] = tensor->dims[i], strides[i] = 1;
    return 0;
}

/* ---- one cell ----
 *
 * The reserve keeps for each step and row of a batch what the way back needs: the gates, and for an
 * LSTM the state of the cell, for a GRU the state's part of the candidate. The way back puts the gates'
 * gradients in their place: those of the input's part, and of a GRU's candidate that of the state's. */

typedef struct {
    float gate[4];
    float extra;
} Kept;

static int is_computed(const Rnn *rnn) {
    static int told;
    int known = rnn->layers == 1 && rnn->directions == 1 && rnn->type == OF_FLOAT && rnn->projection == rnn->hidden &&
                (rnn->cell == CELL_LSTM || rnn->cell == CELL_GRU);
    if (!known && !told++) note("cannot compute this recurrent layer");
    return known && read_machine()->computes;
}

int cudnnGetRNNTempSpaceSizes(void *handle, const Rnn *rnn, int mode, const Sequence *x, size_t *work, size_t *reserve) {
    *work = 1 << 20;
    *reserve = sizeof(Kept) * (size_t)rnn->hidden * (size_t)x->steps * (size_t)x->batch + (1 << 20);
    return 0;
}

static float *row(const Sequence *s, const float *data, int step, int batch) {
    int index = s->layout == BATCH_MAJOR ? batch * s->steps + step : step * s->batch + batch;
    return (float *)data + (size_t)index * (size_t)s->width;
}

static const float *state_before(const Sequence *y, const float *data, const float *initial, int hidden, int step,
                                 int batch) {
    if (step) return row(y, data, step - 1, batch);
    return initial ? initial + batch * hidden : NULL;
}

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }

static float dot(const float *a, const float *b, int size) {
    float sum = 0;
    for (int i = 0; b && i < size; i++) sum += a[i] * b[i];
    return sum;
}

/* The part of a gate that comes from the input, or with `of_state` from the state. */
static float part(const Rnn *rnn, const float *weights, const float *from, int gate, int unit, int of_state) {
    int region = gate + (of_state ? rnn->gates : 0), wide = columns(rnn, 0, region);
    const float *matrix = weights + matrices_before(rnn, 0, region);
    return dot(matrix + unit * wide, from, wide) + weights[bias_at(rnn, 0, region) + (size_t)unit];
}

static float lstm_unit(const Rnn *rnn, const float *w, const float *x, const float *h, float c, int unit, Kept *kept) {
    enum { IN, FORGET, CANDIDATE, OUT };
    for (int gate = 0; gate < 4; gate++) {
        float sum = part(rnn, w, x, gate, unit, 0) + part(rnn, w, h, gate, unit, 1);
        kept->gate[gate] = gate == CANDIDATE ? tanhf(sum) : sigmoid(sum);
    }
    kept->extra = kept->gate[FORGET] * c + kept->gate[IN] * kept->gate[CANDIDATE];
    return kept->gate[OUT] * tanhf(kept->extra);
}

static float gru_unit(const Rnn *rnn, const float *w, const float *x, const float *h, int unit, Kept *kept) {
    enum { RESET, UPDATE, CANDIDATE };
    for (int gate = 0; gate < 2; gate++)
        kept->gate[gate] = sigmoid(part(rnn, w, x, gate, unit, 0) + part(rnn, w, h, gate, unit, 1));
    kept->extra = part(rnn, w, h, CANDIDATE, unit, 1);
    kept->gate[CANDIDATE] = tanhf(part(rnn, w, x, CANDIDATE, unit, 0) + kept->gate[RESET] * kept->extra);
    return (1 - kept->gate[UPDATE]) * kept->gate[CANDIDATE] + kept->gate[UPDATE] * (h ? h[unit] : 0);
}

int cudnnRNNForward(void *handle, const Rnn *rnn, int mode, const int *lengths, const Sequence *xd, const float *x,
                    const Sequence *yd, float *y, void *hd, const float *hx, float *hy, void *cd, const float *cx, float *cy,
                    size_t weights_size, const float *w, size_t work_size, void *work, size_t reserve_size, Kept *reserve) {
    if (!is_computed(rnn)) return 0;
    int hidden = rnn->hidden;
    Kept *all = reserve ? reserve : malloc(sizeof(Kept) * (size_t)(xd->steps * xd->batch * hidden + 1));
    for (int t = 0; t < xd->steps; t++)
        for (int b = 0; b < xd->batch; b++) {
            const float *h = state_before(yd, y, hx, hidden, t, b), *in = row(xd, x, t, b);
            Kept *now = all + (size_t)((t * xd->batch + b) * hidden), *then = now - xd->batch * hidden;
            float *out = row(yd, y, t, b);
            for (int u = 0; u < hidden; u++) {
                float c = t ? then[u].extra : cx ? cx[b * hidden + u] : 0;
                if (rnn->cell == CELL_LSTM) out[u] = lstm_unit(rnn, w, in, h, c, u, &now[u]);
                else out[u] = gru_unit(rnn, w, in, h, u, &now[u]);
                if (t + 1 < xd->steps) continue;
                if (hy) hy[b * hidden + u] = out[u];
                if (cy && rnn->cell == CELL_LSTM) cy[b * hidden + u] = now[u].extra;
            }
        }
    if (!reserve) free(all);
    return 0;
}

/* Gradients of what goes into the gates of one unit, from that of its output. `state` is the gradient
 * of the cell's state, which is handed on to the step before. */
static void lstm_back(Kept *k, float dh, float c_before, float *state) {
    float i = k->gate[0], f = k->gate[1], g = k->gate[2], o = k->gate[3], c = tanhf(k->extra);
    float dc = *state + dh * o * (1 - c * c);
    *state = dc * f;
    k->gate[0] = dc * g * i * (1 - i);
    k->gate[1] = dc * c_before * f * (1 - f);
    k->gate[2] = dc * i * (1 - g * g);
    k->gate[3] = dh * c * o * (1 - o);
}

/* `direct` is the gradient of the state before that comes from the output itself. */
static void gru_back(Kept *k, float dh, float h_before, float *direct) {
    float r = k->gate[0], z = k->gate[1], n = k->gate[2], part = k->extra;
    float dn = dh * (1 - z) * (1 - n * n);
    *direct = dh * z;
    k->gate[0] = dn * part * r * (1 - r);
    k->gate[1] = dh * (h_before - n) * z * (1 - z);
    k->gate[2] = dn;
    k->extra = dn * r;
}

/* The gradient that a region's product with the weights has: of a GRU's candidate the state's own. */
static float region_gradient(const Rnn *rnn, const Kept *k, int region) {
    if (rnn->cell == CELL_GRU && region == 2 * rnn->gates - 1) return k->extra;
    return k->gate[region % rnn->gates];
}

static void add_through(const Rnn *rnn, const float *w, const Kept *kept, int of_state, float *to) {
    for (int gate = 0; gate < rnn->gates; gate++) {
        int region = gate + (of_state ? rnn->gates : 0), wide = columns(rnn, 0, region);
        const float *matrix = w + matrices_before(rnn, 0, region);
        for (int u = 0; u < rnn->hidden; u++)
            for (int j = 0; j < wide; j++) to[j] += region_gradient(rnn, &kept[u], region) * matrix[u * wide + j];
    }
}

int cudnnRNNBackwardData_v8(void *handle, const Rnn *rnn, const int *lengths, const Sequence *yd, const float *y,
                            const float *dy, const Sequence *xd, float *dx, void *hd, const float *hx, const float *dhy,
                            float *dhx, void *cd, const float *cx, const float *dcy, float *dcx, size_t weights_size,
                            const float *w, size_t work_size, void *work, size_t reserve_size, Kept *reserve) {
    if (!is_computed(rnn)) return 0;
    int hidden = rnn->hidden;
    float *dh = malloc(sizeof(float) * (size_t)hidden), *dc = malloc(sizeof(float) * (size_t)hidden);
    for (int b = 0; b < xd->batch; b++) {
        for (int u = 0; u < hidden; u++) dh[u] = dhy ? dhy[b * hidden + u] : 0;
        for (int u = 0; u < hidden; u++) dc[u] = dcy ? dcy[b * hidden + u] : 0;
        for (int t = xd->steps - 1; t >= 0; t--) {
            const float *h = state_before(yd, y, hx, hidden, t, b), *out = row(yd, dy, t, b);
            Kept *now = reserve + (size_t)((t * xd->batch + b) * hidden), *then = now - xd->batch * hidden;
            for (int u = 0; u < hidden; u++) {
                float whole = dh[u] + out[u], c = t ? then[u].extra : cx ? cx[b * hidden + u] : 0;
                dh[u] = 0;
                if (rnn->cell == CELL_LSTM) lstm_back(&now[u], whole, c, &dc[u]);
                else gru_back(&now[u], whole, h ? h[u] : 0, &dh[u]);
            }
            float *in = row(xd, dx, t, b);
            memset(in, 0, sizeof(float) * (size_t)xd->width);
            add_through(rnn, w, now, 0, in);
            add_through(rnn, w, now, 1, dh);
        }
        if (dhx) memcpy(dhx + b * hidden, dh, sizeof(float) * (size_t)hidden);
        if (dcx) memcpy(dcx + b * hidden, dc, sizeof(float) * (size_t)hidden);
    }
    free(dh);
    free(dc);
    return 0;
}

int cudnnRNNBackwardWeights_v8(void *handle, const Rnn *rnn, int add, const int *lengths, const Sequence *xd,
                               const float *x, void *hd, const float *hx, const Sequence *yd, const float *y,
                               size_t weights_size, float *dw, size_t work_size, void *work, size_t reserve_size,
                               const Kept *reserve) {
    if (!is_computed(rnn)) return 0;
    for (int t = 0; t < xd->steps; t++)
        for (int b = 0; b < xd->batch; b++) {
            const float *h = state_before(yd, y, hx, rnn->hidden, t, b), *in = row(xd, x, t, b);
            const Kept *now = reserve + (size_t)((t * xd->batch + b) * rnn->hidden);
            for (int region = 0; region < 2 * rnn->gates; region++) {
                const float *from = region < rnn->gates ? in : h;
                int wide = columns(rnn, 0, region);
                for (int u = 0; u < rnn->hidden; u++) {
                    float gradient = region_gradient(rnn, &now[u], region);
                    float *matrix = dw + matrices_before(rnn, 0, region) + u * wide;
                    for (int j = 0; from && j < wide; j++) matrix[j] += gradient * from[j];
                    dw[bias_at(rnn, 0, region) + (size_t)u] += gradient;
                }
            }
        }
    return 0;
}
