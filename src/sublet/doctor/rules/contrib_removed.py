"""`tf.contrib` and the tutorials' data went with TensorFlow 1."""

import ast
from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program
from sublet.doctor.rule import Rule, Seen
from sublet.doctor.versions import asks_version

_GONE = ("tf.contrib", "tf1.contrib", "tf.examples.tutorials")
_PACKAGES = ("tensorflow.contrib", "tensorflow.examples.tutorials")


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    if asks_version(program):
        return
    for node in program.nodes:
        for name in _names(program, node):
            yield Seen(getattr(node, "lineno", 1), (name,))
            return


def _names(program: Program, node: ast.AST) -> Iterator[str]:
    match node:
        case ast.ImportFrom(module=str(module)) if module.startswith(_PACKAGES):
            yield module
        case ast.Import(names=parts):
            yield from (part.name for part in parts if part.name.startswith(_PACKAGES))
        case ast.Attribute() if (name := program.name_of(node)) in _GONE:
            yield name


RULE = Rule(
    id="contrib-removed",
    severity="error",
    sentence="{tf.contrib} is not part of TensorFlow 2.",
    fix="Use what replaced it: tf.keras, tensorflow_addons, tf_slim or keras.datasets.",
    log=(
        r"module 'tensorflow[\w.]*' has no attribute '(contrib)'",
        r"No module named '(tensorflow\.(?:contrib|examples)[\w.]*)'",
    ),
    code=_code,
)
