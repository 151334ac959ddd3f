"""A kernel wrote where it must not."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="illegal-address",
    severity="error",
    sentence="A CUDA kernel has failed ({which}), after which the process cannot use the GPU.",
    fix="Run again with TF_GPU_ALLOCATOR=memory_guard and CUDA_LAUNCH_BLOCKING=1 to "
    "see which operation it is; update the driver.",
    log=(r"(CUDA_ERROR_ILLEGAL_ADDRESS|CUDA_ERROR_LAUNCH_FAILED|CUDA_ERROR_MISALIGNED_ADDRESS)",),
)
