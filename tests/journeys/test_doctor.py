"""A program that fails under Sublet is told why at its end; afterwards its job can be examined."""

import json

import pytest

from support.queue import submit
from support.sandbox import PATIENCE, Sandbox

FAILS = """
import tensorflow as tf
tf.ones([2])
tf.config.threading.set_intra_op_parallelism_threads(1)
"""


@pytest.mark.parametrize("options", [(), ("--cold",)])
def test_a_program_that_fails_is_told_why_and_where(
    sandbox: Sandbox, options: tuple[str, ...]
) -> None:
    sandbox.write("fails.py", FAILS)
    ended = sandbox.sublet("run", *options, "fails.py", timeout=PATIENCE)
    assert ended.returncode == 1
    *_, advice, fix, summary = ended.stderr.splitlines()
    assert "fails.py:4: tf.config.threading" in advice
    assert "[settings-after-start]" in advice
    assert fix.startswith("sublet: fix: ")
    assert summary.startswith("sublet: lease ")
    quiet = sandbox.sublet("run", "--quiet", *options, "fails.py", timeout=PATIENCE)
    assert "settings-after-start" not in quiet.stderr
    assert quiet.stderr.splitlines()[-1].startswith("RuntimeError")


def test_a_job_is_examined_by_verdict_log_and_script(sandbox: Sandbox) -> None:
    """Its own mistakes are not the doctor's business."""
    sandbox.write("fails.py", FAILS)
    sandbox.write("own.py", "raise ValueError('my own mistake')")
    numbers = [str(submit(sandbox, name)) for name in ("fails.py", "own.py")]
    sandbox.sublet("wait", *numbers, timeout=PATIENCE)
    found = sandbox.sublet("doctor", "--json", numbers[0], timeout=PATIENCE)
    assert found.returncode == 1
    (one,) = json.loads(found.stdout)["findings"]
    assert (one["rule"], one["line"]) == ("settings-after-start", 4)
    own = sandbox.sublet("doctor", numbers[1], timeout=PATIENCE)
    assert own.returncode == 0, own.stdout
    unknown = sandbox.sublet("doctor", "99999", timeout=PATIENCE)
    assert unknown.returncode == 2
