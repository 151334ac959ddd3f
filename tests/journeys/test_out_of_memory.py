"""Every way in which TensorFlow is known to fail for want of memory, and what is said of each. They
are listed in docs/out-of-memory.md."""

import json
import re
import textwrap
from typing import Any

from support.sandbox import PATIENCE, Sandbox

HEAD = """
import sys
import numpy as np
import tensorflow as tf

MIB = 1 << 18

def array():
    return np.ones([200, MIB], "float32")
"""

# Name, program, exit code, and what the explanation says.
WAYS = [
    ("operation", "tf.zeros([200, MIB])", 1, "OOM when allocating tensor with shape[200,262144]"),
    (
        "with_xla",
        """
        @tf.function(jit_compile=True)
        def build(x):
            return tf.ones([200, MIB]) * x
        build(tf.constant(1.0))
        """,
        1,
        "Out of memory while trying to allocate 200",
    ),
    (
        "py_function",
        "tf.py_function(lambda: tf.zeros([200, MIB]), [], tf.float32)",
        1,
        "OOM when allocating tensor with shape[200,262144]",
    ),
    (
        "batch",
        "list(tf.data.Dataset.range(200).map(lambda _: tf.zeros([MIB])).batch(200))",
        1,
        "Failed to allocate memory for the batch",
    ),
    (
        "graph_constant",
        """
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        tf.function(lambda x: x + tf.constant(1.0, shape=[200, MIB]))(tf.constant(1.0))
        """,
        1,
        "no out-of-memory error",
    ),
    ("from_numpy", "tf.constant(array())", 139, "TensorFlow crashed (SIGSEGV)"),
    ("data_set", "tf.data.Dataset.from_tensor_slices(array())", 139, "crashed (SIGSEGV)"),
    (
        "generator",
        """
        data = tf.data.Dataset.range(2)
        list(data.map(lambda _: tf.numpy_function(array, [], tf.float32)))
        """,
        139,
        "crashed (SIGSEGV)",
    ),
    (
        "session_feed",
        """
        tf.compat.v1.disable_eager_execution()
        x = tf.compat.v1.placeholder(tf.float32, [200, MIB])
        tf.compat.v1.Session().run(tf.reduce_sum(x), {x: array()})
        """,
        139,
        "crashed (SIGSEGV)",
    ),
    (
        "session_variables",
        """
        v1 = tf.compat.v1
        v1.disable_eager_execution()
        v1.get_variable("weights", [40, MIB])
        v1.get_variable("momentum", [40, MIB], initializer=v1.zeros_initializer())
        v1.Session().run(v1.global_variables_initializer())
        """,
        139,
        "crashed (SIGSEGV)",
    ),
    (
        "conv2d",
        "tf.nn.conv2d(tf.ones([8, 64, 64, 16]), tf.ones([3, 3, 16, 512]), 1, 'SAME')",
        139,
        "crashed (SIGSEGV)",
    ),
    (
        "conv3d",
        "tf.nn.conv3d(tf.ones([2, 16, 32, 32, 16]), tf.ones([3, 3, 3, 16, 256]), [1] * 5, 'SAME')",
        134,
        "crashed (SIGABRT)",
    ),
]


def test_every_way_to_fail_for_want_of_memory_is_recognised_and_explained(
    sandbox: Sandbox,
) -> None:
    """All at once: TensorFlow tries for ten seconds before it fails."""
    clients = {}
    for name, text, _, _ in WAYS:
        sandbox.write(f"{name}.py", HEAD + textwrap.dedent(text))
        words = ("--memory", "64MiB", "--report", f"{name}.json", f"{name}.py")
        clients[name] = sandbox.start("run", "-q", *words)
    for name, _, code, said in WAYS:
        _, err = clients[name].communicate(timeout=PATIENCE)
        report = json.loads((sandbox.work / f"{name}.json").read_text())
        assert (name, report["code"], report["cause"]) == (name, code, "lease exceeded"), err
        explanation = err.partition("sublet: the program needed more memory than its lease")[2]
        assert said in re.sub(r"\s+", " ", explanation), err


OWN = """
{take}
import os
os._exit(3)
"""


def _fails_itself(sandbox: Sandbox, take: str, *words: str) -> dict[str, Any]:
    sandbox.write("own.py", HEAD + OWN.format(take=take))
    answer = sandbox.sublet("run", "-q", "--report", "report.json", *words, "own.py")
    assert answer.returncode == 3
    return json.loads((sandbox.work / "report.json").read_text())  # type: ignore[no-any-return]


def test_a_program_that_got_what_it_waited_for_and_fails_then_fails_by_itself(
    sandbox: Sandbox,
) -> None:
    """Its lease was raised while Python stood still, so nobody in it could tidy up."""
    report = _fails_itself(sandbox, "kept = tf.constant(array())", "--memory", "64MiB..1GiB")
    assert report["lease"] > report["floor"]
    assert report["cause"] == "exited"
