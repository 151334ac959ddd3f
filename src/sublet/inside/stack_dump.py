"""Writes the Python stacks of a task of a cluster to its stderr when it is asked to.

By `faulthandler`, in the signal handler itself: it works while the program waits inside TensorFlow,
which is when somebody asks.
"""

from __future__ import annotations

import os

from ..formats import stack_dump


def listen() -> None:
    """Do so from here on, if this is such a task."""
    if os.environ.get(stack_dump.VARIABLE) != str(stack_dump.SIGNAL):
        return
    import faulthandler

    try:
        faulthandler.register(stack_dump.SIGNAL, file=2, all_threads=True)
    except (OSError, ValueError, RuntimeError):
        return  # Without a stderr there is nobody to tell.
