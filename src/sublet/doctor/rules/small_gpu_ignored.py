"""TensorFlow leaves a small GPU alone beside a large one."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="small-gpu-ignored",
    severity="warning",
    sentence="TensorFlow does not use a GPU because it has fewer multiprocessors "
    "({how many}) than it wants.",
    fix="Set TF_MIN_GPU_MULTIPROCESSOR_COUNT to that number or less.",
    log=(r"Ignoring visible gpu device[^\n]{0,300}(?:core|multiprocessor) count: (\d+)",),
)
