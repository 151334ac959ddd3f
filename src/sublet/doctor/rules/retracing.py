"""TensorFlow traces a function anew for each new Python value, and for each new function."""

import ast
from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.names import decorated
from sublet.doctor.program import Program, Step, is_function
from sublet.doctor.rule import Rule, Seen

_COUNTS = ("range", "enumerate")


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    for step in program.steps:
        if step.name == "tf.function" and _each_time(program, step):
            yield Seen(step.line, ("is made anew in each turn of a loop",))
        elif (name := _called(step)) and _traced(program, name) and _counts(step):
            yield Seen(step.line, (f"gets a Python number that changes ({name})",))
    for node in program.nodes:
        if isinstance(node, ast.For | ast.While):
            for one in node.body:
                if is_function(one) and decorated(program, one.name, "tf.function"):
                    yield Seen(one.lineno, ("is made anew in each turn of a loop",))


def _each_time(program: Program, step: Step) -> bool:
    """Whether the same function is wrapped with each turn, and called there."""
    if not step.loops or not isinstance(step.loops[-1], ast.For | ast.While):
        return False
    wrapped = step.call.args[0] if step.call.args else None
    return isinstance(wrapped, ast.Lambda) or (
        isinstance(wrapped, ast.Name) and wrapped.id in program.functions
    )


def _called(step: Step) -> str:
    match step.node:
        case ast.Call(func=ast.Name(id=name)):
            return name
    return ""


def _traced(program: Program, name: str) -> bool:
    """Whether it is a tf.function that says nothing of what it is called with."""
    mark = decorated(program, name, "tf.function")
    if mark is None:
        return False
    return not (isinstance(mark, ast.Call) and _has_signature(mark))


def _has_signature(mark: ast.Call) -> bool:
    return any(word.arg == "input_signature" for word in mark.keywords)


def _counts(step: Step) -> bool:
    """Whether it is called with the number that a Python loop counts."""
    if not step.loops or not isinstance(step.loops[-1], ast.For):
        return False
    loop = step.loops[-1]
    if not (isinstance(loop.iter, ast.Call) and isinstance(loop.iter.func, ast.Name)):
        return False
    if loop.iter.func.id not in _COUNTS or _inside(step):
        return False
    counter = loop.target
    if loop.iter.func.id == "enumerate":
        counter = counter.elts[0] if isinstance(counter, ast.Tuple) else counter
    return isinstance(counter, ast.Name) and any(
        isinstance(one, ast.Name) and one.id == counter.id for one in step.call.args
    )


def _inside(step: Step) -> bool:
    return any(one.startswith("tf.Graph") for one in step.within)


RULE = Rule(
    id="retracing",
    severity="warning",
    sentence="A tf.function {is made in a loop, or called with changing Python values or shapes}, "
    "so TensorFlow traces it again and again: slow, and the graphs stay in memory.",
    fix="Make the function once, outside of the loop, and pass numbers as tensors: "
    "`tf.constant(i)`.",
    log=(r"out of the last \d+ calls to .{0,300}triggered tf\.function retracing",),
    code=_code,
)
