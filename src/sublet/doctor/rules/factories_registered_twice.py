"""Printed by every start of some versions."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="factories-registered-twice",
    severity="note",
    sentence='"Unable to register {cuDNN} factory" is printed by TensorFlow 2.15 to 2.18 '
    "at every start and harmless.",
    fix="Nothing has to be done.",
    log=(r"Unable to register (cuDNN|cuFFT|cuBLAS) factory",),
)
