"""The build lock: one for all calls of a process, held while they build, compile and trace.

A call holds it, not a thread: all threads that work for that call hold it too, so a call cannot
wait for itself (a strategy's replicas, a `py_function`).

It cannot deadlock with TensorFlow's own locks, one for each `tf.function`, because whoever needs
both takes the build lock first. `FunctionLock` ensures that where a function is traced for the
first time, `build_patches` where it is traced again. Nobody waits for the build lock while holding
only one of TensorFlow's.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from . import call_context


class _ThreadOwner(threading.local):
    """Holds the lock for a thread that works for no call."""

    def __init__(self) -> None:
        self.token = threading.current_thread()


class BuildLock:
    """A re-entrant lock whose owner is a call."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._owner: object | None = None
        self._depth = 0
        self._thread_owner = _ThreadOwner()

    def held(self) -> bool:
        """Whether the calling thread holds the lock; no other thread can change that."""
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
        return call_context.current() or self._thread_owner.token

    def _wait(self, me: object) -> None:
        if not isinstance(me, call_context.CallContext):
            self._change.wait()
            return
        me.waits_for = f"the build lock, which {self._owner} holds"
        try:
            self._change.wait()
        finally:
            me.waits_for = ""


BUILD_LOCK = BuildLock()


def locked(
    original: Callable[..., Any], needed: Callable[[Any], bool] | None = None
) -> Callable[..., Any]:
    """`original`, called with the build lock held unless `needed(first argument)` is false."""

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        if needed is not None and not needed(args[0]):
            return original(*args, **kwargs)
        with BUILD_LOCK:
            return original(*args, **kwargs)

    return run


UNFINISHED = "_sublet_unfinished"
"""Attribute of a `tf.function` whose variables the holder of the build lock is initialising."""


class FunctionLock:
    """Replaces the lock of one `tf.function`.

    TensorFlow takes that lock briefly in every call, to look up what it has traced, and holds it
    during the first trace. So it takes the build lock along only until the function has been traced
    once and its variables exist: later steps go on while other calls build.
    """

    def __init__(self, function: Any, lock: Any) -> None:
        self._function = weakref.ref(function)
        self._lock = lock
        self._with_build_lock: list[bool] = []
        """For each level of holding: whether it took the build lock. Only the holder touches it."""

    def acquire(self) -> bool:
        function = self._function()
        # Once set it stays set, so without the build lock there is nothing to trace here.
        first = getattr(function, "_variable_creation_config", None) is None
        first = first or hasattr(function, UNFINISHED)
        if first:
            BUILD_LOCK.acquire()
        self._lock.acquire()
        self._with_build_lock.append(first)
        return True

    def release(self) -> None:
        first = self._with_build_lock.pop()
        self._lock.release()
        if first:
            BUILD_LOCK.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
