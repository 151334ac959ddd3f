"""The smallest TensorFlow program: one operation, and the moment at which it was done."""

import sys
import time
from pathlib import Path

import tensorflow as tf


def main(stamp: str) -> None:
    """Do one operation and leave the time in the file `stamp`."""
    (tf.constant(1.0) + 1.0).numpy()
    now = time.monotonic_ns()
    Path(stamp).write_text(str(now))


if __name__ == "__main__":
    main(sys.argv[1])
