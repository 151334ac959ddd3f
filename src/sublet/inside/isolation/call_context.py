"""Which call a thread works for.

Owns that one fact, and hands it on: a thread that a call starts works for the same call. What must
not mix between calls that share a process (random numbers, whose turn it is to build) is kept by
the call, not by the thread.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any


class CallContext:
    """One call while it runs. `notes` belongs to the modules that keep something for each call,
    under their own names; it ends with the call."""

    def __init__(self, number: int, name: str, graph_mode: bool = False) -> None:
        self.number = number
        self.name = name
        self.graph_mode = graph_mode
        self.notes: dict[str, Any] = {}
        self.waits_for = ""
        self.ended = False

    def end(self) -> None:
        """Whoever still holds on to the call (a thread, a graph) keeps none of its state."""
        self.ended = True
        self.notes.clear()

    def __str__(self) -> str:
        return f"call {self.number} ({self.name})"


class _Local(threading.local):
    errand: CallContext | None = None


_local = _Local()


def current() -> CallContext | None:
    """The call that this thread works for; None in the main thread and in TensorFlow's own."""
    return _local.errand


@contextlib.contextmanager
def working_for(errand: CallContext | None) -> Iterator[None]:
    """Let this thread work for `call_context`."""
    before, _local.errand = _local.errand, errand
    try:
        yield
    finally:
        _local.errand = before


def bound(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, working for the call that is current now, whichever thread runs it later."""
    errand = current()
    if errand is None:
        return function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with working_for(errand):
            return function(*args, **kwargs)

    return run


def hand_on() -> None:
    """From now on, threads work for the call that started them. Once per process is enough."""
    start = threading.Thread.start
    if getattr(start, "_sublet", False):
        return

    @functools.wraps(start)
    def start_bound(self: threading.Thread) -> None:
        if current() is not None:
            # On the instance: whatever class it is of, its own `run` is found when it runs.
            self.run = bound(self.run)  # type: ignore[method-assign]
        start(self)

    # Put in the place of Thread's own, and marked: the checker knows neither.
    start_bound._sublet = True  # type: ignore[attr-defined]
    threading.Thread.start = start_bound  # type: ignore[method-assign]
