"""Notices the steps of a program that runs already, whichever way it computes.

Keras calls its callbacks before and after each batch; a program without Keras calls functions made
by `tf.function`, or runs sessions. These are methods that Python looks up at each call: replaced in
their classes, they are noticed from the next step on, and put back, they cost nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from .. import hook

KERAS = "keras"
CALL = "call"
_BATCHES = (("train", "train step"), ("test", "evaluation step"), ("predict", "prediction step"))


class Step:
    """One step, as Python sees it: on a GPU its operations may go on after it."""

    def __init__(self, kind: str, name: str, number: str = "") -> None:
        self.kind = kind
        """`KERAS` for a batch of Keras', `CALL` for a function or a session."""
        self.name = name
        self.label = f"{name} {number}".strip()
        self.thread = threading.current_thread().name
        self.began = time.monotonic_ns()
        self.marker: Any = None
        """What marks it in TensorFlow's profile."""


class StepHooks:
    """Calls `begins` and `ended` for the outermost step of each thread while it is installed."""

    def __init__(self, begins: Callable[[Step], None], ended: Callable[[Step, int], None]) -> None:
        self._begins, self._ended = begins, ended
        self._local = threading.local()
        self._pid = os.getpid()
        self._replaced: list[tuple[Any, str, Any]] = []
        self._active = True

    def install(self) -> None:
        """Replace what is loaded by now, and the rest as soon as it is."""
        for keras in ("keras", "tf_keras"):
            hook.when_imported(keras, functools.partial(self._try, self._replace_batches, keras))
        self._try(self._replace_function)
        self._try(self._replace_session)

    def remove(self) -> None:
        """Put everything back that nobody else has replaced meanwhile."""
        self._active = False
        for owner, name, wrapped in self._replaced:
            if owner.__dict__.get(name) is wrapped:
                setattr(owner, name, wrapped.__wrapped__)
        self._replaced.clear()

    def _try(self, replace: Callable[..., None], *args: str) -> None:
        if self._works:
            with contextlib.suppress(ImportError, AttributeError, KeyError):
                replace(*args)  # Another version may not have it: these are no steps then.

    def _replace_batches(self, keras: str) -> None:
        callbacks = sys.modules[keras].callbacks.CallbackList
        for word, name in _BATCHES:
            self._replace(callbacks, f"on_{word}_batch_begin", self._with_begin(name))
            self._replace(callbacks, f"on_{word}_batch_end", self._with_end)

    def _replace_function(self) -> None:
        from tensorflow.python.eager.polymorphic_function import polymorphic_function

        self._replace(
            polymorphic_function.Function,
            "__call__",
            self._around(lambda function: getattr(function, "_name", None) or "tf.function"),
        )

    def _replace_session(self) -> None:
        from tensorflow.python.client import session

        self._replace(session.BaseSession, "run", self._around(lambda _: "Session.run"))

    def _replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        original = owner.__dict__[name]
        wrapped = functools.wraps(original)(wrap(original))
        setattr(owner, name, wrapped)
        self._replaced.append((owner, name, wrapped))

    def _with_begin(self, name: str) -> Callable[[Any], Any]:
        def wrap(original: Any) -> Any:
            def on_batch_begin(callbacks: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
                self._begin(KERAS, name, str(batch))
                return original(callbacks, batch, *args, **kwargs)

            return on_batch_begin

        return wrap

    def _with_end(self, original: Any) -> Any:
        def on_batch_end(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                self._end(KERAS)

        return on_batch_end

    def _around(self, name: Callable[[Any], str]) -> Callable[[Any], Any]:
        def wrap(original: Any) -> Any:
            def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
                if self._open is not None or not self._works:
                    return original(owner, *args, **kwargs)
                self._begin(CALL, name(owner))
                try:
                    return original(owner, *args, **kwargs)
                finally:
                    self._end(CALL)

            return call

        return wrap

    @property
    def _works(self) -> bool:
        """A forked child has these hooks, and nobody who records."""
        return self._active and self._pid == os.getpid()

    @property
    def _open(self) -> Step | None:
        """The step that this thread is in."""
        return getattr(self._local, "step", None)

    def _begin(self, kind: str, name: str, number: str = "") -> None:
        if not self._works:
            return
        # A batch that was not there, at the end of the data, has begun and not ended.
        self._local.step = None
        try:
            step = Step(kind, name, number)
            self._begins(step)
            step.began = time.monotonic_ns()
            self._local.step = step
        except Exception:
            return  # The program continues, with a step that is not recorded.

    def _end(self, kind: str) -> None:
        step = self._open
        if step is None or step.kind != kind:
            return
        self._local.step = None
        if not self._works:
            return
        try:
            self._ended(step, time.monotonic_ns())
        except Exception:
            return
