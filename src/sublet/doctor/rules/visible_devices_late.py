"""CUDA reads CUDA_VISIBLE_DEVICES once, when TensorFlow first looks for devices."""

from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Flow, Program, Step
from sublet.doctor.rule import Rule, Seen
from sublet.doctor.runtime import LISTS_CARDS, first_start

_NAMES = ("environ CUDA_VISIBLE_DEVICES", "environ CUDA_DEVICE_ORDER")


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    for flow in program.flows:
        for step in flow:
            if step.name in _NAMES and (look := _looked(program, flow, step)) is not None:
                yield Seen(step.line, (step.name.split()[1], f"line {look.line}"))


def _looked(program: Program, flow: Flow, before: Step) -> Step | None:
    for step in flow:
        if step is before:
            break
        if step.name in LISTS_CARDS and before.may_follow(step):
            return step
    return first_start(program, flow, before)


RULE = Rule(
    id="visible-devices-late",
    severity="error",
    sentence="{CUDA_VISIBLE_DEVICES} is set after TensorFlow has looked for GPUs ({where}), so it "
    "has no effect.",
    fix="Set it at the top of the program, before TensorFlow is imported.",
    code=_code,
)
