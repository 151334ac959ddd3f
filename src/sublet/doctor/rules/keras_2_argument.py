"""Keras 3 has fewer arguments and methods."""

from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program
from sublet.doctor.rule import Rule, Seen
from sublet.doctor.runtime import MODELS
from sublet.doctor.variables import settings

_GONE = ("fit_generator", "predict_generator", "evaluate_generator", "predict_classes")


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    legacy = any(True for _ in settings(program, "TF_USE_LEGACY_KERAS"))
    if not machine.keras_3 or legacy or "tf_keras" in program.text:
        return
    for step in program.steps:
        receiver, _, method = step.name.rpartition(".")
        if receiver == "keras.optimizers" and step.keyword("lr") is not None:
            yield Seen(step.line, ("lr",))
        elif method in _GONE and MODELS.fullmatch(receiver):
            yield Seen(step.line, (method,))


RULE = Rule(
    id="keras-2-argument",
    severity="error",
    sentence="{An argument or a method} belongs to Keras 2, and Keras 3 does not know it.",
    fix="Write what Keras 3 calls it (learning_rate for lr, fit for fit_generator), or install "
    "tf_keras and set TF_USE_LEGACY_KERAS=1.",
    log=(
        r"Argument\(s\) not recognized: (\{[^}\n]{1,80}\})",
        r"object has no attribute '((?:fit|predict|evaluate)_generator|predict_classes)'",
    ),
    code=_code,
)
