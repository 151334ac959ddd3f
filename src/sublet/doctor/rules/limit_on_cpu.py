"""The CPU's logical devices share one allocator."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="limit-on-cpu",
    severity="error",
    sentence="A memory limit was set for a logical CPU device, and TensorFlow has none for CPUs.",
    fix="Leave memory_limit out; `sublet run --memory` limits a program on the CPU.",
    log=(r"Setting memory limit on CPU virtual devices is currently not supported",),
)
