"""Estimators were taken out of TensorFlow 2.16."""

import ast
from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program
from sublet.doctor.rule import Rule, Seen

_GONE = ("tf.estimator", "tf1.estimator", "keras.estimator")


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    if (machine.tensorflow or "2.16").startswith(("1.", "2.1.", "2.10", "2.11", "2.13", "2.15")):
        return
    for node in program.nodes:
        named = isinstance(node, ast.Attribute) and program.name_of(node) in _GONE
        imported = isinstance(node, ast.ImportFrom) and node.module == "tensorflow.estimator"
        if named or imported:
            yield Seen(getattr(node, "lineno", 1))
            return


RULE = Rule(
    id="estimator-removed",
    severity="error",
    sentence="tf.estimator was removed in TensorFlow 2.16.",
    fix="Train with Keras, or pin `tensorflow<2.16`.",
    log=(r"module 'tensorflow[\w.]*' has no attribute 'estimator'",),
    code=_code,
)
