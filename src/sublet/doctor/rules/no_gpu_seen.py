"""What TensorFlow prints where it has no GPU, wanted or not."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="no-gpu-seen",
    severity="note",
    sentence="TensorFlow saw no GPU and computed on the CPU.",
    fix="If there should be one, `sublet doctor` without an argument says what is missing.",
    log=(
        r"failed call to cuInit: [^\n]{0,80}(?:CUDA_ERROR_NO_DEVICE|UNKNOWN ERROR)",
        r"Could not find cuda drivers on your machine, GPU will not be used",
    ),
)
