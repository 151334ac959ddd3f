/* libcublas.so.12 and libcublasLt.so.12: matrix products, on the host. Matrices are by columns. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

/* cudaDataType_t and cublasOperation_t, as far as TensorFlow uses them. */
enum { R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14 };
enum { AS_IT_IS = 0 };
enum { NOT_SUPPORTED_BY_CUBLAS = 15 };

typedef struct {
    const void *at;
    int type, transposed;
    int64_t rows, columns, leading; /* before it is transposed */
    int64_t stride;                 /* from one of a batch to the next */
} Matrix;

static size_t width(int type) { return type == R_64F ? 8 : type == R_32F ? 4 : 2; }

static int is_known(int type) { return type == R_32F || type == R_64F || type == R_16F || type == R_16BF; }

static double load(const void *from, int64_t index, int type) {
    if (type == R_64F) return ((const double *)from)[index];
    if (type == R_32F) return ((const float *)from)[index];
    if (type == R_16F) return (double)((const _Float16 *)from)[index];
    uint32_t bits = (uint32_t)((const uint16_t *)from)[index] << 16;
    float value;
    return memcpy(&value, &bits, 4), value;
}

static void store(void *to, int64_t index, int type, double value) {
    if (type == R_64F) ((double *)to)[index] = value;
    else if (type == R_32F) ((float *)to)[index] = (float)value;
    else if (type == R_16F) ((_Float16 *)to)[index] = (_Float16)value;
    else {
        float number = (float)value;
        uint32_t bits;
        memcpy(&bits, &number, 4);
        ((uint16_t *)to)[index] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

/* The vectors of length `inner` that are multiplied with each other, one after the other. */
static double *vectors(const Matrix *m, int64_t batch, int64_t outer, int64_t inner, int inner_is_row) {
    const char *from = (const char *)m->at + (size_t)(batch * m->stride) * width(m->type);
    double *out = malloc((size_t)(outer * inner + 1) * sizeof *out);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            int64_t row = inner_is_row ? i : o, column = inner_is_row ? o : i;
            out[o * inner + i] = load(from, m->transposed ? row * m->leading + column : column * m->leading + row, m->type);
        }
    return out;
}

typedef struct {
    double alpha, beta;
    const void *c; /* what is added; its batches and columns are those of the result */
    int64_t c_leading, c_stride;
    const void *bias; /* one for each row, or NULL */
    int bias_type;
    double (*then)(double); /* done to each element in the end, or NULL */
} Extras;

static void multiply(const Matrix *a, const Matrix *b, void *to, int type, int64_t m, int64_t n, int64_t k,
                     int64_t leading, int64_t stride, int64_t batches, const Extras *e) {
    if (!read_machine()->computes) return;
    for (int64_t batch = 0; batch < batches; batch++) {
        double *rows = vectors(a, batch, m, k, 0), *columns = vectors(b, batch, n, k, 1);
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = 0; i < m; i++) {
                double sum = 0;
                for (int64_t l = 0; l < k; l++) sum += rows[i * k + l] * columns[j * k + l];
                sum *= e->alpha;
                if (e->beta != 0) sum += e->beta * load(e->c, batch * e->c_stride + j * e->c_leading + i, type);
                if (e->bias) sum += load(e->bias, i, e->bias_type);
                store(to, batch * stride + j * leading + i, type, e->then ? e->then(sum) : sum);
            }
        free(rows);
        free(columns);
    }
}

static double scalar(const void *at, int type) { return at ? load(at, 0, type) : 0; }

static int gemm(int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda, int64_t sa,
                const void *b, int bt, int ldb, int64_t sb, const void *beta, void *c, int ct, int ldc, int64_t sc,
                int batches, int scale) {
    if (!is_known(at) || !is_known(bt) || !is_known(ct)) return NOT_SUPPORTED_BY_CUBLAS;
    Matrix one = {.at = a, .type = at, .transposed = ta != AS_IT_IS, .leading = lda, .stride = sa};
    Matrix other = {.at = b, .type = bt, .transposed = tb != AS_IT_IS, .leading = ldb, .stride = sb};
    Extras e = {scalar(alpha, scale), scalar(beta, scale), c, ldc, sc, NULL, 0, NULL};
    return multiply(&one, &other, c, ct, m, n, k, ldc, sc, batches, &e), 0;
}

static int gemm_each(int ta, int tb, int m, int n, int k, const void *alpha, const void *const *a, int at, int lda,
                     const void *const *b, int bt, int ldb, const void *beta, void *const *c, int ct, int ldc,
                     int batches, int scale) {
    int failed = 0;
    for (int i = 0; i < batches && !failed; i++)
        failed = gemm(ta, tb, m, n, k, alpha, a[i], at, lda, 0, b[i], bt, ldb, 0, beta, c[i], ct, ldc, 0, 1, scale);
    return failed;
}

/* What alpha and beta are of, by cublasComputeType_t. */
static int scale_of(int compute) {
    enum { IN_16F = 64, IN_16F_PEDANTIC = 65, IN_64F = 70, IN_64F_PEDANTIC = 71 };
    if (compute == IN_64F || compute == IN_64F_PEDANTIC) return R_64F;
    return compute == IN_16F || compute == IN_16F_PEDANTIC ? R_16F : R_32F;
}

/* ---- handles ---- */

enum { ALLOC_FAILED = 3 };

int cublasCreate_v2(void **out) { return (*out = new_library_handle()) ? 0 : ALLOC_FAILED; }
int cublasLtCreate(void **out) { return *out = new_handle(), 0; }
int cublasGetVersion_v2(void *handle, int *version) { return *version = 120503, 0; }
size_t cublasLtGetVersion(void) { return 120503; }
int cublasGetMathMode(void *handle, int *mode) { return *mode = 0, 0; }
int cublasGetPointerMode_v2(void *handle, int *mode) { return *mode = 0, 0; }
int cublasGetStream_v2(void *handle, void **stream) { return *stream = NULL, 0; }
const char *cublasGetStatusString(int code) { return "a status of the stand-in"; }

/* ---- products ---- */

#define GEMMS(letter, type, code)                                                                                      \
    int cublas##letter##gemm_v2(void *handle, int ta, int tb, int m, int n, int k, const type *alpha, const type *a,   \
                                int lda, const type *b, int ldb, const type *beta, type *c, int ldc) {                 \
        return gemm(ta, tb, m, n, k, alpha, a, code, lda, 0, b, code, ldb, 0, beta, c, code, ldc, 0, 1, code);         \
    }                                                                                                                  \
    int cublas##letter##gemmBatched(void *handle, int ta, int tb, int m, int n, int k, const type *alpha,              \
                                    const void *const *a, int lda, const void *const *b, int ldb, const type *beta,    \
                                    void *const *c, int ldc, int batches) {                                            \
        return gemm_each(ta, tb, m, n, k, alpha, a, code, lda, b, code, ldb, beta, c, code, ldc, batches, code);       \
    }                                                                                                                  \
    int cublas##letter##gemmStridedBatched(void *handle, int ta, int tb, int m, int n, int k, const type *alpha,       \
                                           const type *a, int lda, long long sa, const type *b, int ldb, long long sb, \
                                           const type *beta, type *c, int ldc, long long sc, int batches) {            \
        return gemm(ta, tb, m, n, k, alpha, a, code, lda, sa, b, code, ldb, sb, beta, c, code, ldc, sc, batches, code); \
    }
GEMMS(S, float, R_32F)
GEMMS(D, double, R_64F)

/* A matrix and a vector: a product with one column. The vector is a row that is transposed, so that its
 * elements may lie apart; those of the result may not. */
#define GEMVS(letter, type, code)                                                                                      \
    int cublas##letter##gemv_v2(void *handle, int ta, int rows, int columns, const type *alpha, const type *a,         \
                                int lda, const type *x, int apart, const type *beta, type *y, int result_apart) {      \
        int m = ta == AS_IT_IS ? rows : columns, k = ta == AS_IT_IS ? columns : rows;                                  \
        if (result_apart != 1) return NOT_SUPPORTED_BY_CUBLAS;                                                         \
        return gemm(ta, !AS_IT_IS, m, 1, k, alpha, a, code, lda, 0, x, code, apart, 0, beta, y, code, m, 0, 1, code);  \
    }
GEMVS(S, float, R_32F)
GEMVS(D, double, R_64F)

int cublasSgemmEx(void *handle, int ta, int tb, int m, int n, int k, const float *alpha, const void *a, int at, int lda,
                  const void *b, int bt, int ldb, const float *beta, void *c, int ct, int ldc) {
    return gemm(ta, tb, m, n, k, alpha, a, at, lda, 0, b, bt, ldb, 0, beta, c, ct, ldc, 0, 1, R_32F);
}
int cublasGemmEx(void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda,
                 const void *b, int bt, int ldb, const void *beta, void *c, int ct, int ldc, int compute, int algorithm) {
    return gemm(ta, tb, m, n, k, alpha, a, at, lda, 0, b, bt, ldb, 0, beta, c, ct, ldc, 0, 1, scale_of(compute));
}
int cublasGemmBatchedEx(void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *const *a, int at,
                        int lda, const void *const *b, int bt, int ldb, const void *beta, void *const *c, int ct, int ldc,
                        int batches, int compute, int algorithm) {
    return gemm_each(ta, tb, m, n, k, alpha, a, at, lda, b, bt, ldb, beta, c, ct, ldc, batches, scale_of(compute));
}
int cublasGemmStridedBatchedEx(void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at,
                               int lda, long long sa, const void *b, int bt, int ldb, long long sb, const void *beta,
                               void *c, int ct, int ldc, long long sc, int batches, int compute, int algorithm) {
    int scale = scale_of(compute);
    return gemm(ta, tb, m, n, k, alpha, a, at, lda, sa, b, bt, ldb, sb, beta, c, ct, ldc, sc, batches, scale);
}

/* ---- cublasLt: a product is described first ---- */

typedef struct {
    int compute, scale, transposed_a, transposed_b, epilogue;
    const void *bias;
    int bias_type;
} Product;

typedef struct {
    int type;
    int64_t rows, columns, leading, stride;
    int batches;
} Layout;

int cublasLtMatmulDescCreate(Product **out, int compute, int scale) {
    *out = calloc(1, 1024);
    **out = (Product){.compute = compute, .scale = scale, .epilogue = 1, .bias_type = -1};
    return 0;
}
int cublasLtMatmulDescDestroy(Product *product) { return free(product), 0; }
int cublasLtMatmulDescSetAttribute(Product *product, int attribute, const void *value, size_t size) {
    switch (attribute) {
        case 3: product->transposed_a = *(const int *)value; break;
        case 4: product->transposed_b = *(const int *)value; break;
        case 7: product->epilogue = *(const int *)value; break;
        case 8: product->bias = *(void *const *)value; break;
        case 26: product->bias_type = *(const int *)value; break;
    }
    return 0;
}

int cublasLtMatrixLayoutCreate(Layout **out, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    *out = calloc(1, 1024);
    **out = (Layout){type, (int64_t)rows, (int64_t)columns, leading, 0, 1};
    return 0;
}
int cublasLtMatrixLayoutDestroy(Layout *layout) { return free(layout), 0; }
int cublasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, const void *value, size_t size) {
    if (attribute == 5) layout->batches = *(const int *)value;
    if (attribute == 6) layout->stride = *(const int64_t *)value;
    return 0;
}

int cublasLtMatmulPreferenceCreate(void **out) { return *out = new_handle(), 0; }
int cublasLtMatmulPreferenceDestroy(void *preference) { return free(preference), 0; }

/* One way to do it, without a workspace. */
typedef struct {
    uint64_t algorithm[8];
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
} Heuristic;

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c, void *d, void *preference,
                                   int room, Heuristic *out, int *found) {
    memset(out, 0, sizeof *out);
    return *found = room > 0, 0;
}

static double relu(double x) { return x > 0 ? x : 0; }
static double gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

int cublasLtMatmul(void *handle, const Product *p, const void *alpha, const void *a, const Layout *al, const void *b,
                   const Layout *bl, const void *beta, const void *c, const Layout *cl, void *d, const Layout *dl,
                   const void *algorithm, void *workspace, size_t size, void *stream) {
    enum { RELU = 2, BIAS = 4, GELU = 32 };
    if (!is_known(al->type) || !is_known(bl->type) || !is_known(dl->type)) return NOT_SUPPORTED_BY_CUBLAS;
    Matrix one = {.at = a, .type = al->type, .transposed = p->transposed_a, .leading = al->leading, .stride = al->stride};
    Matrix other = {.at = b, .type = bl->type, .transposed = p->transposed_b, .leading = bl->leading, .stride = bl->stride};
    Extras e = {scalar(alpha, p->scale), scalar(beta, p->scale), c, cl->leading, cl->stride, NULL, 0, NULL};
    if (p->epilogue & BIAS) e.bias = p->bias, e.bias_type = p->bias_type < 0 ? dl->type : p->bias_type;
    if (p->epilogue & RELU) e.then = relu;
    if (p->epilogue & GELU) e.then = gelu;
    int64_t inner = p->transposed_a ? al->rows : al->columns;
    return multiply(&one, &other, d, dl->type, dl->rows, dl->columns, inner, dl->leading, dl->stride, dl->batches, &e), 0;
}
