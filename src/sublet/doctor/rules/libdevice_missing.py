"""XLA compiles for the GPU with files of the CUDA toolkit."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="libdevice-missing",
    severity="error",
    sentence="XLA cannot find libdevice, a file of the CUDA toolkit, and Keras "
    "compiles with XLA where it sees a GPU.",
    fix="Set XLA_FLAGS=--xla_gpu_cuda_data_dir=DIR to the directory that holds "
    "nvvm/libdevice, or pass jit_compile=False to compile().",
    log=(
        r"libdevice not found at",
        r"[Cc]an't find libdevice directory",
    ),
)
