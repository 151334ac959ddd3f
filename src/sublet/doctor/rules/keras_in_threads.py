"""Keras says of its TensorFlow backend that it is not thread-safe."""

from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program, Step
from sublet.doctor.rule import Rule, Seen
from sublet.doctor.runtime import MODELS, works_with_model
from sublet.doctor.threads import threads


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    for thread in threads(program):
        if not thread.several:
            continue
        for step in program.flow_of(thread.target):
            locked = any("Lock" in one or "?" in one for one in step.within)
            if not locked and (works_with_model(step) or _builds(step)):
                yield Seen(step.line, (thread.target,))
                break


def _builds(step: Step) -> bool:
    return MODELS.fullmatch(step.name + "()") is not None or (
        step.name.endswith(".compile")
        and MODELS.fullmatch(step.name[: -len(".compile")]) is not None
    )


RULE = Rule(
    id="keras-in-threads",
    severity="error",
    sentence="{A function} builds, trains or calls Keras models in several threads: Keras on "
    "TensorFlow is "
    "not thread-safe.",
    fix="Hold one lock around Keras calls, call an exported tf.function instead, or use processes: "
    "`sublet.Pool`.",
    log=(
        r"'(?:Functional|Sequential|Model)' object has no attribute '(?:predict|train"
        r"|test)_function'",
    ),
    code=_code,
)
