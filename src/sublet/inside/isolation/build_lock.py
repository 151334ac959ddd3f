"""Whose turn it is to build.

Owns the one lock under which calls that share a process build, compile and trace. It belongs to a
call and not to a thread: threads that work for the call that has the turn have it too, so a call
cannot wait for itself (a strategy's replicas, a `py_function`).

Why it cannot deadlock with TensorFlow's own locks, one for each `tf.function`: whoever needs both
takes the turn first. `FunctionLock` sees to it where a function is traced for the first time, and
`build_patches` where it is traced again. With one of TensorFlow's locks alone nobody ever waits for
a turn.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from . import call_context


class _Stranger(threading.local):
    """Who has the turn in a thread that works for no call."""

    def __init__(self) -> None:
        self.token = threading.current_thread()


class BuildLock:
    """A re-entrant lock that a call holds."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._owner: object | None = None
        self._depth = 0
        self._stranger = _Stranger()

    def held(self) -> bool:
        """Whether the calling thread has the turn: nobody else can change that."""
        return self._owner is self._me()

    def acquire(self) -> None:
        me = self._me()
        with self._change:
            while self._owner is not None and self._owner is not me:
                self._wait(me)
            self._owner = me
            self._depth += 1

    def release(self) -> None:
        with self._change:
            self._depth -= 1
            if self._depth == 0:
                self._owner = None
                self._change.notify()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _me(self) -> object:
        return call_context.current() or self._stranger.token

    def _wait(self, me: object) -> None:
        if not isinstance(me, call_context.CallContext):
            self._change.wait()
            return
        me.waits_for = f"its turn to build, which {self._owner} has"
        try:
            self._change.wait()
        finally:
            me.waits_for = ""


TURN = BuildLock()
"""The one of this process."""


def taking(
    original: Callable[..., Any], needed: Callable[[Any], bool] | None = None
) -> Callable[..., Any]:
    """`original` with the turn; where `needed` of its first argument is false, without."""

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        if needed is not None and not needed(args[0]):
            return original(*args, **kwargs)
        with TURN:
            return original(*args, **kwargs)

    return run


UNFINISHED = "_sublet_unfinished"
"""On a `tf.function` whose variables are being initialised by whoever has the turn."""


class FunctionLock:
    """Stands in for the lock of one `tf.function`.

    TensorFlow takes it for a moment in every call, to find what it has traced, and keeps it while
    it traces for the first time. So it brings the turn only until the function has been traced
    once and its variables are there, and steps of others go on while somebody builds.
    """

    def __init__(self, function: Any, lock: Any) -> None:
        self._function = weakref.ref(function)
        self._lock = lock
        self._turns: list[bool] = []
        """Whether each level of holding brought the turn. Only touched by the holder."""

    def acquire(self) -> bool:
        function = self._function()
        # Once it is set it stays, so whoever comes without the turn finds nothing to trace here.
        first = getattr(function, "_variable_creation_config", None) is None
        first = first or hasattr(function, UNFINISHED)
        if first:
            TURN.acquire()
        self._lock.acquire()
        self._turns.append(first)
        return True

    def release(self) -> None:
        first = self._turns.pop()
        self._lock.release()
        if first:
            TURN.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
