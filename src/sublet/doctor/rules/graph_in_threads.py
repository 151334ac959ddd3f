"""A graph of TensorFlow 1 may be run from several threads, and built by one only."""

import ast
from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program, Step
from sublet.doctor.rule import Rule, Seen
from sublet.doctor.threads import threads

_RUNS = ("tf1.Session", "tf1.train.Coordinator", "tf1.get_default_graph", "tf1.Graph", "tf.Graph")


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    if not (program.uses("tf1") or program.graph_mode):
        return
    for thread in threads(program):
        builds = [step for step in program.flow_of(thread.target) if _builds(program, step)]
        if builds and thread.several:
            yield Seen(builds[0].line, (thread.target,))


def _builds(program: Program, step: Step) -> bool:
    library, _, name = step.name.partition(".")
    if library not in ("tf", "tf1") or step.name in _RUNS or "." in name or "()" in name:
        return False
    own = any(one.endswith(".as_default()") or "Lock" in one for one in step.within)
    return not own and isinstance(step.node, ast.Call)


RULE = Rule(
    id="graph-in-threads",
    severity="error",
    sentence="{A function} adds to a TensorFlow 1 graph in several threads, or to a finished one: "
    "graphs are "
    "not safe to build from threads.",
    fix="Build the graph before the threads start and only call `Session.run` in them, or give "
    "each thread its own `tf.Graph().as_default()`.",
    log=(
        r"Graph is finalized and cannot be modified",
        r"Tensor .{0,200}is not an element of this graph",
    ),
    code=_code,
)
