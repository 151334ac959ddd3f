"""A TensorFlow without what it promises nobody: less is prepared and measured, the rest holds."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow

START_UNPREPARED = """
import json
from sublet.nursery import nursery, onednn, preload
from sublet.inside import allocator

whole = allocator.c_library

class Plain:
    def __getattr__(self, name):
        if name.startswith("_Z"):
            raise AttributeError(name)
        return getattr(whole(), name)

allocator.c_library = Plain
done = []
prepare = onednn.prepare
onednn.prepare = lambda: done.append(prepare())
version = preload.preload()
print(json.dumps([version, done, nursery.unsafe_to_fork()]))
"""

UNMEASURED = """
import tensorflow as tf
from tensorflow.python import pywrap_tfe
del pywrap_tfe.TFE_GetMemoryInfo, pywrap_tfe.TFE_ResetMemoryStats

print(float(tf.reduce_sum(tf.ones([1024]))))
try:
    tf.zeros([100 << 18])
except tf.errors.ResourceExhaustedError:
    print("refused")
"""

# What a leased program has of Sublet is the package `_sublet.inside`.
UNPATCHED = """
from _sublet.inside import patches

patches._patch_session = lambda session: session.no_such_thing
import tensorflow as tf
print(float(tf.reduce_sum(tf.ones([1024]))))
"""


def test_without_the_names_of_its_library_a_nursery_is_warm_and_safe_to_fork() -> None:
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    ran = subprocess.run(
        [sys.executable, "-c", START_UNPREPARED],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    version, done, unsafe = json.loads(ran.stdout.splitlines()[-1])
    assert version
    assert True not in done
    assert unsafe == ""


def test_without_a_way_to_measure_the_ceiling_still_holds(start: Callable[..., Any]) -> None:
    ended = start(UNMEASURED).wait()
    assert ended.code == 0, ended.err
    assert ended.out.split() == ["1024.0", "refused"]


def test_a_tensorflow_that_cannot_be_patched_is_told_of_and_runs(start: Callable[..., Any]) -> None:
    ended = start(UNPATCHED).wait()
    assert (ended.code, ended.out) == (0, "1024.0\n"), ended.err
    (line,) = ended.said
    assert "cannot be held to a lease in full" in line
    assert "no_such_thing" in line
    assert "use one of these, or a newer Sublet" in line
