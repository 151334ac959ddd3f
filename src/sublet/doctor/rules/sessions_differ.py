"""What is said of a GPU counts for the process: the first session decides."""

import ast
from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program, literal
from sublet.doctor.rule import Rule, Seen

_WORDS = ("visible_device_list", "per_process_gpu_memory_fraction")


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    values: dict[str, list[tuple[object, int]]] = {word: [] for word in _WORDS}
    for step in program.calls("tf1.GPUOptions"):
        for word in _WORDS:
            if (value := literal(step.keyword(word))) is not None:
                values[word].append((value, step.line))
    for node in program.nodes:
        match node:
            case ast.Assign(targets=[ast.Attribute(attr=attr)], value=value) if attr in _WORDS:
                if (known := literal(value)) is not None:
                    values[attr].append((known, node.lineno))
    for word, found in values.items():
        if len({value for value, _ in found}) > 1:
            yield Seen(found[-1][1], (word,))


RULE = Rule(
    id="sessions-differ",
    severity="error",
    sentence="Sessions of one process differ in {their GPU options}, and only the first one's "
    "counts: the others "
    "are "
    "ignored or refused.",
    fix="Give all sessions the same GPU options, or run them as programs of their own.",
    log=(r"is being mapped to multiple devices",),
    code=_code,
)
