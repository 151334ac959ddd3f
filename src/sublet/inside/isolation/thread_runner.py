"""The crew: the threads of one worker process that run calls side by side on one runtime.

Owns the threads, the order of arrival and how a call ends; what keeps calls apart is in
`shared_runtime`. Never ends a call by force: a thread cannot be ended, only told about.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from ...formats import lease
from . import shared_runtime
from .call_context import CallContext
from .stall_watch import StallWatch
from .thread_state import ThreadState

STUCK_AFTER = 300.0

ISOLATIONS = ("thread", "session")


@dataclasses.dataclass(frozen=True)
class CallOutcome:
    """How a call ended: with a value, or with whatever it raised. A call that calls `sys.exit` has
    raised SystemExit; that ends nothing but the call."""

    value: Any = None
    error: BaseException | None = None


@dataclasses.dataclass(frozen=True)
class _Order:
    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    carried: ThreadState


class ThreadRunner:
    """Runs calls in order of arrival, at most `threads` at a time, each on a thread of its own: a
    call finds nothing that an earlier one left in its thread.

    A call sees the Keras settings, the seeds and the execution mode of the thread that calls
    `start`. `done(number, outcome)` is called on the thread that ran the call, once for each call.
    `close` may be called from any thread that runs no call.
    """

    def __init__(
        self,
        isolation: str,
        threads: int,
        done: Callable[[int, CallOutcome], None],
        stuck_after: float | None = STUCK_AFTER,
        told: Callable[[str], None] = lease.say,
    ) -> None:
        if isolation not in ISOLATIONS:
            raise ValueError(f"isolation is {isolation!r}: it can be {' or '.join(ISOLATIONS)}")
        if threads < 1:
            raise ValueError(f"threads is {threads}: a crew needs at least one")
        self._graph_mode = isolation == "session"
        self._free = threads
        self._done = done
        self._told = told
        self._watch = StallWatch(stuck_after, told)
        self._change = threading.Condition()
        self._orders: collections.deque[_Order] = collections.deque()
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
        """Have `function` called as soon as a thread is free. Never blocks."""
        order = _Order(number, function, args, kwargs or {}, ThreadState())
        with self._change:
            if self._closed:
                raise RuntimeError(f"call {number} came after the crew was closed")
            self._orders.append(order)
            self._fill()

    def close(self) -> None:
        """Take no more calls, and return when all that were started have ended."""
        with self._change:
            self._closed = True
            self._change.wait_for(lambda: not self._threads)
        self._watch.close()

    def _fill(self) -> None:
        """Start threads for those who wait, as long as there may be more."""
        while self._orders and self._free:
            thread = threading.Thread(target=self._run, args=(self._orders[0],), daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The machine has no thread for us now; whoever ends next tries again.
                if not self._threads:
                    raise
                return
            self._orders.popleft()
            self._free -= 1
            self._threads.add(thread)

    def _run(self, order: _Order) -> None:
        call = CallContext(order.number, _name(order.function), self._graph_mode)
        threading.current_thread().name = f"call-{order.number}"
        try:
            self._done(order.number, self._outcome(order, call))
        except BaseException as wrong:
            self._told(f"the end of {call} could not be reported: {wrong!r}")
        finally:
            with self._change:
                self._free += 1
                self._threads.discard(threading.current_thread())
                self._fill()
                self._change.notify_all()

    def _outcome(self, order: _Order, call: CallContext) -> CallOutcome:
        try:
            with self._watch.over(call), shared_runtime.apart(call, order.carried):
                return CallOutcome(value=order.function(*order.args, **order.kwargs))
        except BaseException as error:
            return CallOutcome(error=error)


def _name(function: Any) -> str:
    while hasattr(function, "func"):
        function = function.func
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
