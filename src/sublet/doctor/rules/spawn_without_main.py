"""A spawned child imports the script: what is not guarded runs there, too."""

import ast
from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program, literal
from sublet.doctor.rule import Rule, Seen

_STARTS = ("Process", "Pool", "ProcessPoolExecutor")


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    spawns = any(
        step.name.endswith((".set_start_method", ".get_context"))
        and step.call.args
        and literal(step.call.args[0]) in ("spawn", "forkserver")
        for step in program.steps
    )
    if not spawns or "__name__" in {
        node.id for node in program.nodes if isinstance(node, ast.Name)
    }:
        return
    for step in program.flows[0]:
        if step.name.rpartition(".")[2] in _STARTS and _is_process(step.name):
            yield Seen(step.line)
            return


def _is_process(name: str) -> bool:
    return name.startswith(("multiprocessing", "concurrent.futures"))


RULE = Rule(
    id="spawn-without-main",
    severity="error",
    sentence='Children are spawned outside of `if __name__ == "__main__":`, so each child would '
    "start children again, and Python refuses.",
    fix='Put what starts processes below `if __name__ == "__main__":`.',
    log=(r"before the\s+current process has finished its bootstrapping phase",),
    code=_code,
)
