"""Which call a thread works for.

A thread that a call starts works for the same call. State that calls must not share (random
numbers, the build lock) belongs to the call and not to the thread.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any


class CallContext:
    """One call while it runs. In `state` modules keep what belongs to the call, each under keys of
    its own; it ends with the call."""

    def __init__(self, number: int, name: str, graph_mode: bool = False) -> None:
        self.number = number
        self.name = name
        self.graph_mode = graph_mode
        self.state: dict[str, Any] = {}
        self.waits_for = ""
        self.ended = False

    def end(self) -> None:
        """Drop its state: a thread or a graph may hold on to the call for longer."""
        self.ended = True
        self.state.clear()

    def __str__(self) -> str:
        return f"call {self.number} ({self.name})"


class _Local(threading.local):
    call: CallContext | None = None


_local = _Local()


def current() -> CallContext | None:
    """The call that this thread works for; None in the main thread and in TensorFlow's own."""
    return _local.call


@contextlib.contextmanager
def working_for(call: CallContext | None) -> Iterator[None]:
    """Have this thread work for `call`."""
    before, _local.call = _local.call, call
    try:
        yield
    finally:
        _local.call = before


def bound(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, bound to the call that is current now, whichever thread runs it later."""
    call = current()
    if call is None:
        return function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with working_for(call):
            return function(*args, **kwargs)

    return run


def patch_threads() -> None:
    """Have new threads work for the call that starts them. Calling it again changes nothing."""
    start = threading.Thread.start
    if getattr(start, "_sublet", False):
        return

    @functools.wraps(start)
    def start_bound(self: threading.Thread) -> None:
        if current() is not None:
            # On the instance, so that it works for subclasses with a `run` of their own.
            self.run = bound(self.run)  # type: ignore[method-assign]
        start(self)

    # Put in the place of Thread's own, and marked: the checker knows neither.
    start_bound._sublet = True  # type: ignore[attr-defined]
    threading.Thread.start = start_bound  # type: ignore[method-assign]
