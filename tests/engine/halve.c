/* An operation that TensorFlow does not have: Halve, by its C interface, which is stable. So it needs
   no headers, and is compiled at once. */
#include <stddef.h>
#include <stdint.h>

typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
typedef struct TF_OpKernelContext TF_OpKernelContext;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_KernelBuilder TF_KernelBuilder;
enum { FLOAT = 1, RANKS = 8 };

TF_Status *TF_NewStatus(void);
void TF_DeleteStatus(TF_Status *);
int TF_NumDims(const TF_Tensor *);
int64_t TF_Dim(const TF_Tensor *, int);
size_t TF_TensorByteSize(const TF_Tensor *);
void *TF_TensorData(const TF_Tensor *);
void TF_DeleteTensor(TF_Tensor *);
void TF_GetInput(TF_OpKernelContext *, int, TF_Tensor **, TF_Status *);
TF_Tensor *TF_AllocateOutput(TF_OpKernelContext *, int, int, const int64_t *, int, size_t, TF_Status *);
TF_OpDefinitionBuilder *TF_NewOpDefinitionBuilder(const char *);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder *, const char *);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder *, const char *);
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder *, TF_Status *);
TF_KernelBuilder *TF_NewKernelBuilder(const char *, const char *, void *(*)(void *),
                                      void (*)(void *, TF_OpKernelContext *), void (*)(void *));
void TF_RegisterKernelBuilder(const char *, TF_KernelBuilder *, TF_Status *);

static void halve(void *kernel, TF_OpKernelContext *context) {
  TF_Status *status = TF_NewStatus();
  TF_Tensor *x = NULL;
  int64_t shape[RANKS];
  TF_GetInput(context, 0, &x, status);
  int ranks = TF_NumDims(x);
  for (int rank = 0; rank < ranks && rank < RANKS; rank++) shape[rank] = TF_Dim(x, rank);
  size_t size = TF_TensorByteSize(x);
  TF_Tensor *y = TF_AllocateOutput(context, 0, FLOAT, shape, ranks, size, status);
  const float *from = TF_TensorData(x);
  float *to = TF_TensorData(y);
  for (size_t i = 0; i < size / sizeof(float); i++) to[i] = from[i] / 2;
  TF_DeleteTensor(x);
  TF_DeleteTensor(y);
  TF_DeleteStatus(status);
}

__attribute__((constructor)) static void add(void) {
  TF_Status *status = TF_NewStatus();
  TF_OpDefinitionBuilder *operation = TF_NewOpDefinitionBuilder("Halve");
  TF_OpDefinitionBuilderAddInput(operation, "x: float");
  TF_OpDefinitionBuilderAddOutput(operation, "y: float");
  TF_RegisterOpDefinition(operation, status);
  TF_KernelBuilder *kernel = TF_NewKernelBuilder("Halve", "CPU", NULL, halve, NULL);
  TF_RegisterKernelBuilder("Halve", kernel, status);
  TF_DeleteStatus(status);
}
