"""A process takes the whole GPU unless it is told otherwise."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="gpu-taken",
    severity="error",
    sentence="The GPU had no memory left when TensorFlow wanted {so much}: another process has "
    "taken it.",
    fix="Run all programs with `sublet run`, which gives each a share; `sublet "
    "status` shows who holds what.",
    log=(
        r"failed to allocate ([0-9.]+ ?\w*)[^\n]{0,60} from device: (?:CUDA_ERROR_OUT_OF_MEMORY"
        r"|RESOURCE_EXHAUSTED)",
        r"failed to create[^\n]{0,60}context[^\n]{0,80}CUDA_ERROR_OUT_OF_MEMORY",
    ),
)
