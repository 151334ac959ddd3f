"""Names of TensorFlow 1 that TensorFlow 2 has below `tf.compat.v1` only."""

import ast
from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program
from sublet.doctor.rule import Rule, Seen
from sublet.doctor.versions import asks_version

_NAMES = [
    "Session",
    "InteractiveSession",
    "ConfigProto",
    "GPUOptions",
    "placeholder",
    "get_variable",
    "variable_scope",
    "global_variables_initializer",
    "initialize_all_variables",
    "local_variables_initializer",
    "get_default_graph",
    "reset_default_graph",
    "set_random_seed",
    "trainable_variables",
    "global_variables",
    "get_default_session",
    "truncated_normal",
    "random_normal",
    "random_uniform",
    "layers.dense",
    "layers.conv2d",
    "train.Saver",
    "train.AdamOptimizer",
    "train.GradientDescentOptimizer",
    "train.Coordinator",
    "train.start_queue_runners",
    "summary.FileWriter",
    "summary.merge_all",
    "app.run",
    "app.flags",
    "flags",
    "gfile",
    "to_float",
    "to_int32",
    "log",
    "assign",
    "placeholder_with_default",
]
_MOVED = frozenset(f"tf.{name}" for name in _NAMES)


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    if not program.uses("tf") or asks_version(program):
        return
    for node in program.nodes:
        if isinstance(node, ast.Attribute) and (name := program.name_of(node)) in _MOVED:
            yield Seen(node.lineno, (name,))
            return


RULE = Rule(
    id="session-in-tf2",
    severity="error",
    sentence="{tf.Session} is a name of TensorFlow 1, which TensorFlow 2 has below "
    "tf.compat.v1 only.",
    fix="Write `import tensorflow.compat.v1 as tf` and `tf.disable_v2_behavior()`.",
    log=(
        r"module '(?:tensorflow[\w.]*)' has no attribute '("
        + "|".join(sorted({name.rpartition(".")[2] for name in _NAMES}))
        + r")'",
    ),
    code=_code,
)
