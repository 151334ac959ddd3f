"""cuDNN and cuBLAS take their memory beside TensorFlow's pool."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="cudnn-without-memory",
    severity="error",
    sentence="{A library of CUDA} could not start: TensorFlow's pool has left no GPU memory for "
    "it.",
    fix="Give the pool less: `sublet run --memory` leaves room beside it, and so "
    "does TF_FORCE_GPU_ALLOW_GROWTH=true.",
    log=(
        r"Could not create (cudnn|cuDNN) handle: CUDNN_STATUS_(?:INTERNAL_ERROR|NOT_INITIALIZED"
        r"|ALLOC_FAILED)",
        r"failed to create (cublas|cudnn|cusolver\w*) handle",
        r"(DNN library) initialization failed",
        r"Failed to get convolution algorithm\. This is probably because (cuDNN) failed to "
        r"initialize",
    ),
)
