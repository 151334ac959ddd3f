"""Logical GPUs divide a card."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="gpu-without-limit",
    severity="error",
    sentence="A logical GPU was configured without a memory limit.",
    fix="Write LogicalDeviceConfiguration(memory_limit=MIB).",
    log=(r"Setting memory limit is required for GPU virtual devices",),
)
