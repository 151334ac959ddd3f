"""The threads that a script starts, and the functions that they run."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from sublet.doctor.program import Program, Step

_THREADS = ("threading.Thread", "threading.Timer")
_POOLS = (
    "concurrent.futures.ThreadPoolExecutor()",
    "concurrent.futures.thread.ThreadPoolExecutor()",
    "multiprocessing.pool.ThreadPool()",
)
_CALLED = ("submit", "map", "imap", "imap_unordered", "apply_async", "starmap")


class Thread(NamedTuple):
    """A function that runs in threads."""

    target: str
    several: bool
    """Whether more than one thread runs it, or the program computes beside it."""
    line: int


def threads(program: Program) -> Iterator[Thread]:
    """The functions of the script that threads run, each once."""
    found: dict[str, list[Step]] = {}
    for step in program.steps:
        target = _target(step)
        if target in program.functions:
            found.setdefault(target, []).append(step)
    for target, steps in found.items():
        several = len(steps) > 1 or bool(steps[0].loops) or _of_pool(steps[0])
        yield Thread(target, several, steps[0].line)


def _target(step: Step) -> str:
    if not isinstance(step.node, ast.Call):
        return ""
    if step.name in _THREADS:
        return _function(step.argument(1, "target" if step.name == _THREADS[0] else "function"))
    return _function(step.call.args[0]) if _of_pool(step) and step.call.args else ""


def _of_pool(step: Step) -> bool:
    receiver, _, method = step.name.rpartition(".")
    return method in _CALLED and receiver in _POOLS


def _function(node: ast.expr | None) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr=name):
            return name
    return ""
