"""XLA ends the process over a flag that it does not know."""

import shlex
from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program
from sublet.doctor.rule import Rule, Seen
from sublet.doctor.variables import settings


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    for step, _, value in settings(program, "XLA_FLAGS"):
        if value and (flag := _unknown(value)):
            yield Seen(step.line, (flag,))


def _machine(machine: Machine) -> Iterator[Seen]:
    if flag := _unknown(machine.environ.get("XLA_FLAGS", "")):
        yield Seen(words=(flag,), text=f"XLA_FLAGS={machine.environ['XLA_FLAGS']}")


def _unknown(value: str) -> str:
    """The first word that cannot be one of XLA's flags; a word alone is a file with flags."""
    try:
        words = shlex.split(value)
    except ValueError:
        return value
    if len(words) == 1 and not words[0].startswith("-"):
        return ""
    return next((word for word in words if not word.startswith("--xla_")), "")


RULE = Rule(
    id="xla-flags-unknown",
    severity="error",
    sentence="XLA does not know the flag {in XLA_FLAGS}, and ends the process over it.",
    fix="Remove the flag or correct its name; TensorFlow's own go into TF_XLA_FLAGS.",
    log=(r"Unknown flags? in (?:TF_)?XLA_FLAGS: (\S+)",),
    code=_code,
    machine=_machine,
    fatal=True,
)
