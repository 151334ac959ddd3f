"""`Model.predict` sets up a data pipeline with each call."""

import ast
from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program, Step
from sublet.doctor.rule import Rule, Seen
from sublet.doctor.runtime import MODELS


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    for step in program.steps:
        receiver, _, method = step.name.rpartition(".")
        if method != "predict" or not step.loops or not MODELS.fullmatch(receiver):
            continue
        rows = step.argument(0, "x")
        if rows is not None and _one_row(program, step, rows) and not _draws(program, step):
            yield Seen(step.line)


def _draws(program: Program, step: Step) -> bool:
    """Whether the loop draws pictures: then a call more or less does not matter."""
    calls = (node for node in ast.walk(step.loops[-1]) if isinstance(node, ast.Call))
    return any(program.name_of(one).startswith("matplotlib") for one in calls)


def _one_row(program: Program, step: Step, value: ast.expr) -> bool:
    """Whether the argument is a batch of one: `x[None]`, `np.expand_dims(x, 0)`, `[x]`."""
    match value:
        case ast.Name(id=name):
            return any(_one_row(program, step, one) for one in _assigned(step, name))
        case ast.List(elts=[first, _, *_]):  # A model with several inputs.
            return _one_row(program, step, first)
        case ast.Call(func=ast.Attribute(attr="expand_dims")):
            return True
        case ast.Call(func=ast.Attribute(attr="array" | "asarray"), args=[ast.List(elts=[_]), *_]):
            return True
        case (
            ast.Call(func=ast.Attribute(attr="reshape"), args=[ast.Constant(value=1), *_])
            | ast.Call(
                func=ast.Attribute(attr="reshape"),
                args=[*_, ast.Tuple(elts=[ast.Constant(value=1), *_])],
            )
        ):
            return True
        case ast.Subscript(slice=ast.Constant(value=None) | ast.Attribute(attr="newaxis")):
            return True
        case ast.Subscript(slice=ast.Tuple(elts=[first, *_])):
            return (isinstance(first, ast.Constant) and first.value is None) or (
                isinstance(first, ast.Attribute) and first.attr == "newaxis"
            )
        case ast.Subscript(
            slice=ast.Slice(
                lower=ast.Name(id=low),
                upper=ast.BinOp(left=ast.Name(id=high), op=ast.Add(), right=ast.Constant(value=1)),
            )
        ):
            return low == high
    return False


def _assigned(step: Step, name: str) -> Iterator[ast.expr]:
    """What the variable is assigned in the loop."""
    for node in ast.walk(step.loops[-1]):
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                if not isinstance(value, ast.Name):
                    yield value


RULE = Rule(
    id="predict-in-loop",
    severity="warning",
    sentence="Model.predict is called for one row at a time in a loop, and sets up a data pipeline "
    "each time: about a hundred times slower than a direct call.",
    fix="Predict all rows in one call, or call `model(x, training=False)` in the loop.",
    code=_code,
)
