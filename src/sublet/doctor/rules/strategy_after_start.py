"""A strategy for several workers sets up the runtime itself."""

import ast
from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program
from sublet.doctor.rule import Rule, Seen
from sublet.doctor.runtime import too_late
from sublet.doctor.variables import settings

STRATEGIES = (
    "tf.distribute.MultiWorkerMirroredStrategy",
    "tf.distribute.experimental.MultiWorkerMirroredStrategy",
)


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    if not _in_cluster(program, machine):
        return
    for step, start in too_late(program, STRATEGIES):
        yield Seen(step.line, (f"line {start.line}",))


def _in_cluster(program: Program, machine: Machine) -> bool:
    """Whether it has a TF_CONFIG, or may get one: alone, the strategy may come at any time."""
    if any(True for _ in settings(program, "TF_CONFIG")):
        return not any(isinstance(node, ast.Delete) for node in program.nodes)
    return "TF_CONFIG" in machine.environ or not program.cells


RULE = Rule(
    id="strategy-after-start",
    severity="error",
    sentence="MultiWorkerMirroredStrategy is made after TensorFlow has started ({where}), and has "
    "to "
    "come first.",
    fix="Make the strategy before anything else of TensorFlow is used.",
    log=(r"Collective ops must be configured at program startup",),
    code=_code,
)
