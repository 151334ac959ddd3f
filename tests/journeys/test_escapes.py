"""Ways around a lease: those that are closed, and those that are told of."""

import pytest

from support.queue import ended, said, submit
from support.sandbox import Sandbox, wait_for

BY_C = """
import ctypes
libc = ctypes.CDLL(None)
libc.setenv(b"TF_CPU_BFC_MEM_LIMIT_IN_MB", b"4096", 1)
libc.setenv(b"TF_CPU_ALLOCATOR_USE_BFC", b"0", 1)
import tensorflow as tf
try:
    tf.ones([400 * 1024 * 256])
except tf.errors.ResourceExhaustedError:
    print("refused")
"""
OUTSIDE = """
import subprocess, sys
child = '''
import os, time
import tensorflow as tf
tf.zeros(1)
while not os.path.exists("go"): time.sleep(0.02)
'''
subprocess.run([sys.executable, "-c", child], env={}, check=True)
"""


@pytest.mark.parametrize("way", [[], ["--cold"]], ids=["warm", "cold"])
def test_an_environment_that_was_changed_behind_pythons_back_changes_no_ceiling(
    sandbox: Sandbox, way: list[str]
) -> None:
    sandbox.write("train.py", BY_C)
    ran = sandbox.sublet("run", *way, "--memory", "128MiB", "train.py")
    assert ran.stdout == "refused\n", ran.stderr


@pytest.mark.parametrize("way", [[], ["--cold"]], ids=["warm", "cold"])
def test_tensorflow_in_a_child_without_an_environment_is_named(
    sandbox: Sandbox, way: list[str]
) -> None:
    """It is not held to the ceiling, and its user is told so."""
    sandbox.write("train.py", OUTSIDE)
    number = submit(sandbox, *way, "train.py", memory="256MiB")
    wait_for(
        lambda: "uses TensorFlow outside of this lease" in said(sandbox, number), "it is named"
    )
    sandbox.write("go", "")
    assert ended(sandbox, number)[0]["exit"] == 0
    assert said(sandbox, number).count("outside of this lease") == 1
