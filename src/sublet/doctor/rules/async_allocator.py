"""Under CUDA's asynchronous allocator the limit is a threshold, and nothing enforces it."""

from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program
from sublet.doctor.rule import Rule, Seen
from sublet.doctor.variables import settings

_NAME, _VALUE = "TF_GPU_ALLOCATOR", "cuda_malloc_async"


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    for step, _, value in settings(program, _NAME):
        if value == _VALUE:
            yield Seen(step.line)


def _machine(machine: Machine) -> Iterator[Seen]:
    if machine.environ.get(_NAME) == _VALUE:
        yield Seen(text=f"{_NAME}={_VALUE}")


RULE = Rule(
    id="async-allocator",
    severity="warning",
    sentence="TF_GPU_ALLOCATOR=cuda_malloc_async ignores memory limits: no lease holds the "
    "program, "
    "and it may take the whole GPU.",
    fix="Remove the variable; against fragmentation give the program a larger lease.",
    code=_code,
    machine=_machine,
)
