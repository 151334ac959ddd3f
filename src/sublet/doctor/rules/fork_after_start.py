"""A forked child has TensorFlow's thread pools as objects, and none of their threads."""

import ast
from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program, Step, literal
from sublet.doctor.rule import Rule, Seen
from sublet.doctor.runtime import first_start, starts_runtime, works_with_model

_CONTEXT = r"multiprocessing.get_context()"
_PROCESSES = ("multiprocessing.Process", f"{_CONTEXT}.Process")
_POOLS = ("multiprocessing.Pool", f"{_CONTEXT}.Pool", "multiprocessing.pool.Pool")
_EXECUTORS = (
    "concurrent.futures.ProcessPoolExecutor",
    "concurrent.futures.process.ProcessPoolExecutor",
)
_CALLED_IN_POOL = ("map", "imap", "imap_unordered", "starmap", "apply", "apply_async", "submit")
_FORKSERVER = (3, 14)
"""From this Python on children are not forked unless that is asked for."""


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    if machine.python >= _FORKSERVER or _starts_anew(program):
        return
    flow = program.flows[0]
    for step in flow:
        start = first_start(program, flow, step) if _forks(program, step) else None
        if start is not None:
            yield Seen(step.line, (f"line {start.line}",))


def _starts_anew(program: Program) -> bool:
    """Whether children are started as new interpreters."""
    for step in program.steps:
        if step.name.endswith((".set_start_method", ".get_context")) and step.call.args:
            return literal(step.call.args[0]) in ("spawn", "forkserver")
        if step.name.endswith(".set_start_method"):
            return literal(step.keyword("method")) in ("spawn", "forkserver")
    return False


def _forks(program: Program, step: Step) -> bool:
    """Whether it starts a child that computes with TensorFlow."""
    if step.name in _PROCESSES:
        return _computes(program, step.argument(1, "target"))
    if step.name in _EXECUTORS and step.keyword("mp_context") is not None:
        return False
    if step.name in (*_POOLS, *_EXECUTORS):
        used = [one for one in program.steps if _in_pool(one)]
        work = [one.call.args[0] for one in used if one.call.args]
        return any(_computes(program, one) for one in [*work, step.keyword("initializer")])
    return False


def _in_pool(step: Step) -> bool:
    receiver, _, method = step.name.rpartition(".")
    return method in _CALLED_IN_POOL and receiver.removesuffix("()") in (*_POOLS, *_EXECUTORS)


def _computes(program: Program, function: ast.expr | None) -> bool:
    if not isinstance(function, ast.Name):
        return False
    steps = program.flow_of(function.id)
    return any(starts_runtime(program, one) or works_with_model(one) for one in steps)


RULE = Rule(
    id="fork-after-start",
    severity="error",
    sentence="A child is forked after TensorFlow has started ({where}): the child waits for ever "
    "in its "
    "first operation, or dies if CUDA was in use.",
    fix="Call multiprocessing.set_start_method('spawn') first, or start the children before "
    "TensorFlow computes; `sublet.Pool` does this for you.",
    log=(
        r"(?:Failed setting context|failed call to cuInit)\b[^\n]{0,80}"
        r"(?:CUDA_ERROR_NOT_INITIALIZED|initialization error)",
        r"is multi-threaded, use of fork\(\) may lead to deadlocks in the child",
    ),
    code=_code,
)
