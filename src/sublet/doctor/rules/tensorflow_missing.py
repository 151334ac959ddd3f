"""Programs run in the interpreter of the active environment, or in Sublet's own."""

from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.rule import Rule, Seen


def _machine(machine: Machine) -> Iterator[Seen]:
    if machine.tensorflow == "":
        yield Seen(words=(machine.interpreter,), text=machine.interpreter)


RULE = Rule(
    id="tensorflow-missing",
    severity="error",
    sentence="There is no TensorFlow in the interpreter that runs programs ({which}).",
    fix="Activate the environment that has it, name its interpreter (`sublet run --python`), or "
    "pip install tensorflow.",
    log=(r"(?:ModuleNotFoundError|ImportError): No module named 'tensorflow'",),
    machine=_machine,
)
