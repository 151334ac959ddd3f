"""TensorFlow's wheels need AVX."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="no-cpu-instructions",
    severity="error",
    sentence="TensorFlow was built for processor instructions that this machine lacks ({which}).",
    fix="Use a newer processor (or CPU type, in a virtual machine), or a TensorFlow "
    "that was built for this one.",
    log=(r"TensorFlow library was compiled to use (\w+) instructions, but these aren.t available",),
)
