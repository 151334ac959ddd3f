"""The crew: the threads of one worker process that run calls side by side on one runtime.

Owns the threads, the order of arrival and how a call ends. What keeps calls apart is in `sharing`
(one runtime for all) and `sessions` (a graph and a session for each). Never ends a call by force:
a thread cannot be ended, only told about.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
from collections.abc import Callable
from typing import Any

from . import errand, lease
from .errand import Errand
from .watch import Watch

STUCK_AFTER = 300.0

ISOLATIONS = ("thread", "session")


@dataclasses.dataclass(frozen=True)
class Outcome:
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


class Crew:
    """Runs each call on one of `threads` threads, in order of arrival.

    `done(number, outcome)` is called on the thread that ran the call, once for each call. `start`
    and `close` may be called from any thread but the crew's own.
    """

    def __init__(
        self,
        isolation: str,
        threads: int,
        done: Callable[[int, Outcome], None],
        stuck_after: float | None = STUCK_AFTER,
        told: Callable[[str], None] = lease.say,
    ) -> None:
        if isolation not in ISOLATIONS:
            raise ValueError(f"isolation is {isolation!r}: it can be {' or '.join(ISOLATIONS)}")
        if threads < 1:
            raise ValueError(f"threads is {threads}: a crew needs at least one")
        self._most = threads
        self._done = done
        self._told = told
        self._watch = Watch(stuck_after, told)
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._unended = 0
        self._closed = False
        errand.hand_on()
        self._apart = _ways_apart(isolation)

    def start(
        self,
        number: int,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Have `function` called when a thread is free. Never blocks."""
        with self._lock:
            if self._closed:
                raise RuntimeError(f"call {number} came after the crew was closed")
            self._orders.put(_Order(number, function, args, kwargs or {}))
            self._unended += 1
            if len(self._threads) < min(self._most, self._unended):
                thread = threading.Thread(
                    target=self._run, name=f"crew-{len(self._threads) + 1}", daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def close(self) -> None:
        """Take no more calls, and return when all that were started have ended."""
        with self._lock:
            self._closed = True
            threads = list(self._threads)
        for _ in threads:
            self._orders.put(None)
        for thread in threads:
            thread.join()
        self._watch.close()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            self._serve(order)
            # Or what the call was given lives until the next one comes.
            del order

    def _serve(self, order: _Order) -> None:
        call = Errand(order.number, _name(order.function))
        outcome = self._outcome(order, call)
        with self._lock:
            self._unended -= 1
        try:
            self._done(order.number, outcome)
        except BaseException as wrong:
            self._told(f"the end of {call} could not be reported: {wrong!r}")

    def _outcome(self, order: _Order, call: Errand) -> Outcome:
        try:
            with errand.working_for(call), self._watch.over(call), self._apart(call):
                return Outcome(value=order.function(*order.args, **order.kwargs))
        except BaseException as error:
            return Outcome(error=error)


def _ways_apart(isolation: str) -> Callable[[Errand], contextlib.AbstractContextManager[None]]:
    return lambda call: contextlib.nullcontext()


def _name(function: Any) -> str:
    while hasattr(function, "func"):
        function = function.func
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
