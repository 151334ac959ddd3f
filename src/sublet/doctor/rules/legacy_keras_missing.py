"""Keras 2 is a package of its own, tf_keras."""

from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program
from sublet.doctor.rule import Rule, Seen
from sublet.doctor.variables import settings

_ON = ("1", "true", "True")


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    if machine.tf_keras is False:
        for step, _, value in settings(program, "TF_USE_LEGACY_KERAS"):
            if value in _ON:
                yield Seen(step.line, ("TF_USE_LEGACY_KERAS",))


def _machine(machine: Machine) -> Iterator[Seen]:
    value = machine.environ.get("TF_USE_LEGACY_KERAS")
    if machine.tf_keras is False and value in _ON:
        yield Seen(words=("TF_USE_LEGACY_KERAS",), text=f"TF_USE_LEGACY_KERAS={value}")


RULE = Rule(
    id="legacy-keras-missing",
    severity="error",
    sentence="{The program} asks for Keras 2, which is not installed.",
    fix="pip install tf_keras (of TensorFlow's version), and set TF_USE_LEGACY_KERAS=1.",
    log=(
        r"(tf\.compat\.v1\.keras)`? (?:is )?not available with Keras 3",
        r"(TF_USE_LEGACY_KERAS)\b[^\n]{0,200}(?:tf_keras|tf-keras)[^\n]{0,60}(?:not installed"
        r"|install)",
        r"No module named '(tf_keras)'",
    ),
    code=_code,
    machine=_machine,
)
