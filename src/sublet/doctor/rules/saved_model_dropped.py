"""The variables of a SavedModel live as long as the object that `load` gave."""

import ast
from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program
from sublet.doctor.rule import Rule, Seen


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    for node in program.nodes:
        match node:
            case ast.Attribute(attr=attr, value=ast.Call() as call):
                if attr != "signatures" and program.name_of(call) == "tf.saved_model.load()":
                    yield Seen(node.lineno)


RULE = Rule(
    id="saved-model-dropped",
    severity="error",
    sentence="The object that tf.saved_model.load returned is not kept: its variables are deleted "
    "with it, and its functions fail.",
    fix="Keep it as long as its functions: `loaded = tf.saved_model.load(path)`.",
    log=(
        r"Called a function referencing variables which have been deleted",
        r"Could not find variable .{0,300}could mean that the variable has been deleted",
        r"Error while reading resource variable .{0,200}from Container: .{0,200}"
        r"(?:not found|was uninitialized)",
    ),
    code=_code,
)
