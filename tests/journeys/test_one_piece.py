"""What a lease says can be had, in one piece and in many."""

import pytest

from support.sandbox import Sandbox

ONE = """
import sys, tensorflow as tf
x = tf.ones([int(sys.argv[1]) * 1024 * 256])
# Operations that do not look whether they got their memory.
print(float(tf.reduce_sum(x[:10])), x[5:100].numpy().size)
"""


@pytest.mark.parametrize(
    ("lease", "piece"),
    [(64, 58), (160, 100), (256, 130), (512, 390), (1024, 900), (1500, 1200), (1500, 1400)],
)
def test_a_large_piece_of_a_lease_leaves_room_for_what_comes_next(
    sandbox: Sandbox, lease: int, piece: int
) -> None:
    """TensorFlow with a limit of its own does it, too."""
    sandbox.write("train.py", ONE)
    ran = sandbox.sublet("run", "--memory", f"{lease}MiB", "train.py", str(piece), check=True)
    assert ran.stdout == "10.0 95\n"


LARGER = """
import tensorflow as tf
for size in range(100, 1001, 100):
    total = tf.reduce_sum(tf.ones([size << 18]))
print(int(total) >> 18)
"""


@pytest.mark.parametrize("memory", ["1200MiB", "64MiB..1200MiB"])
def test_what_smaller_tensors_had_can_be_had_by_larger_ones(sandbox: Sandbox, memory: str) -> None:
    """TensorFlow takes memory in regions, and would keep those that are too small for the next."""
    sandbox.write("larger.py", LARGER)
    ran = sandbox.sublet("run", "--memory", memory, "larger.py")
    assert (ran.returncode, ran.stdout) == (0, "1000\n"), ran.stderr
