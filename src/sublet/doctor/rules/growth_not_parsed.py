"""TF_FORCE_GPU_ALLOW_GROWTH knows two values."""

from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program
from sublet.doctor.rule import Rule, Seen
from sublet.doctor.variables import settings

_NAME = "TF_FORCE_GPU_ALLOW_GROWTH"


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    for step, _, value in settings(program, _NAME):
        if value is not None and value not in ("true", "false"):
            yield Seen(step.line, (repr(value),))


def _machine(machine: Machine) -> Iterator[Seen]:
    value = machine.environ.get(_NAME)
    if value is not None and value not in ("true", "false"):
        yield Seen(words=(repr(value),), text=f"{_NAME}={value}")


RULE = Rule(
    id="growth-not-parsed",
    severity="error",
    sentence="TF_FORCE_GPU_ALLOW_GROWTH is {another word}, which TensorFlow cannot read and "
    "ignores.",
    fix="Write `true` or `false`, in lower case.",
    log=(
        r"TF_FORCE_GPU_ALLOW_GROWTH environment variable is set but could not be parsed: "
        r"(\"[^\"\n]*\")",
    ),
    code=_code,
    machine=_machine,
)
