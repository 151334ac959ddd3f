"""Typed decoders, made by one thread at a time.

msgspec notes what it knows of a record before it has looked at all of its fields, and runs Python
code to look at them. Another thread that decodes such a record meanwhile ends the process with a
segmentation fault (msgspec 0.22). So a process makes its decoders under one lock.
"""

import functools
import os
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_making = threading.Lock()
# A child that was forked while another thread held the lock would wait for ever.
os.register_at_fork(after_in_child=_making._at_fork_reinit)  # type: ignore[attr-defined]


def made_once(make: Callable[[], T]) -> Callable[[], T]:
    """Call `make` once, when its result is first asked for, and never beside another."""
    made = functools.cache(make)

    @functools.wraps(make)
    def get() -> T:
        with _making:
            return made()

    return get
