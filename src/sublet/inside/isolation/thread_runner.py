"""The threads of one worker process, which run calls side by side on one TensorFlow runtime.

What keeps the calls apart is in `shared_runtime`. A call is never ended by force, because a thread
cannot be ended; one that seems stuck is reported (`stall_watch`).
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from ..current_lease import say
from . import shared_runtime
from .call_context import CallContext
from .stall_watch import StallWatch
from .thread_state import ThreadState

STUCK_AFTER = 300.0

ISOLATIONS = ("thread", "session")


@dataclasses.dataclass(frozen=True)
class CallOutcome:
    """How a call ended: with a value, or with whatever it raised, SystemExit included."""

    value: Any = None
    error: BaseException | None = None


@dataclasses.dataclass(frozen=True)
class _Queued:
    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inherited: ThreadState


class ThreadRunner:
    """Runs calls in order of arrival, at most `threads` at a time, each on a new thread, so that a
    call finds nothing that an earlier one left in its thread.

    A call sees the Keras settings, the seeds and the execution mode of the thread that calls
    `start`. `done(number, outcome)` is called once for each call, on its thread; `notify(line)`
    takes lines for the user. `close` may be called from any thread that runs no call.
    """

    def __init__(
        self,
        isolation: str,
        threads: int,
        done: Callable[[int, CallOutcome], None],
        stuck_after: float | None = STUCK_AFTER,
        notify: Callable[[str], None] = say,
    ) -> None:
        if isolation not in ISOLATIONS:
            raise ValueError(f"isolation is {isolation!r}: it can be {' or '.join(ISOLATIONS)}")
        if threads < 1:
            raise ValueError(f"threads is {threads}: at least one is needed")
        self._graph_mode = isolation == "session"
        self._free = threads
        self._done = done
        self._notify = notify
        self._watch = StallWatch(stuck_after, notify)
        self._change = threading.Condition()
        self._waiting: collections.deque[_Queued] = collections.deque()
        self._threads: set[threading.Thread] = set()
        self._closed = False
        shared_runtime.install()

    def start(
        self,
        number: int,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Call `function` as soon as a thread is free. Never blocks."""
        queued = _Queued(number, function, args, kwargs or {}, ThreadState())
        with self._change:
            if self._closed:
                raise RuntimeError(f"call {number} came after the runner was closed")
            self._waiting.append(queued)
            self._fill()

    def close(self) -> None:
        """Take no more calls, and return when all calls have ended."""
        with self._change:
            self._closed = True
            self._change.wait_for(lambda: not self._threads)
        self._watch.close()

    def _fill(self) -> None:
        """Start threads for waiting calls, up to the limit."""
        while self._waiting and self._free:
            thread = threading.Thread(target=self._run, args=(self._waiting[0],), daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The machine has no thread left; the next call that ends tries again.
                if not self._threads:
                    raise
                return
            self._waiting.popleft()
            self._free -= 1
            self._threads.add(thread)

    def _run(self, queued: _Queued) -> None:
        call = CallContext(queued.number, _name(queued.function), self._graph_mode)
        threading.current_thread().name = f"call-{queued.number}"
        try:
            self._done(queued.number, self._outcome(queued, call))
        except BaseException as wrong:
            self._notify(f"the end of {call} could not be reported: {wrong!r}")
        finally:
            with self._change:
                self._free += 1
                self._threads.discard(threading.current_thread())
                self._fill()
                self._change.notify_all()

    def _outcome(self, queued: _Queued, call: CallContext) -> CallOutcome:
        try:
            with self._watch.over(call), shared_runtime.isolated(call, queued.inherited):
                return CallOutcome(value=queued.function(*queued.args, **queued.kwargs))
        except BaseException as error:
            return CallOutcome(error=error)


def _name(function: Any) -> str:
    while hasattr(function, "func"):
        function = function.func
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
