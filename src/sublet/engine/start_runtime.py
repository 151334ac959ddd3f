"""Starts TensorFlow's runtime without what it says each time on a machine without a card.

Those lines look like errors and are none. TensorFlow reads how much it may say when it is loaded,
which was before the fork, as a rule, and does not keep to it: so they are taken out of what it
writes while it is loaded and starts.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterator

_CARD = "/dev/nvidiactl"
_USUAL = (
    b"failed call to cuInit",
    b"MLIR V1 optimization pass is not enabled",
    b"All log messages before absl::InitializeLog() is called",
    b"To enable the following instructions",
)
_INFO = re.compile(rb"I\d{4} |\d{4}-\d\d-\d\d [\d:.]+: I ")
"""How lines begin that tell of no trouble."""


def start_runtime() -> None:
    """Start the runtime by running something; the usual lines are left out of what TensorFlow
    writes. With a card nothing is: its driver may end the process in a way that only these lines
    explain."""
    with contextlib.nullcontext() if os.path.exists(_CARD) else _filtered():
        import tensorflow as tf

        graph = tf.Graph()
        with graph.as_default():
            nothing = tf.no_op()
        with tf.compat.v1.Session(graph=graph) as session:
            session.run(nothing)


@contextlib.contextmanager
def _filtered() -> Iterator[None]:
    """Hold back what is written to the standard error, then write what is worth it."""
    sys.stderr.flush()
    held = os.memfd_create("stderr", os.MFD_CLOEXEC)
    real = os.dup(2)
    os.dup2(held, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(real, 2)
        written = os.pread(held, os.fstat(held).st_size, 0)
        for line in written.splitlines(keepends=True):
            if not (_INFO.match(line) or any(usual in line for usual in _USUAL)):
                os.write(2, line)
        os.close(held)
        os.close(real)
