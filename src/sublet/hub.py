"""One thread's eye on many sockets and deadlines. It calls back; it decides nothing."""

import heapq
import itertools
import selectors
import time
from collections.abc import Callable
from typing import Any

Act = Callable[[], None]


class Hub:
    """Callbacks for readable descriptors and for moments in time."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Act]] = []
        self._cancelled: set[int] = set()
        self._numbers = itertools.count(1)

    def watch(self, source: Any, act: Act) -> None:
        """Call `act` whenever `source` can be read."""
        self._selector.register(source, selectors.EVENT_READ, (act, None))

    def unwatch(self, source: Any) -> None:
        """Stop watching; a source that is not watched is no error."""
        try:
            self._selector.unregister(source)
        except (KeyError, ValueError):
            return

    def when_writable(self, source: Any, act: Act | None) -> None:
        """Also call `act` when `source` can be written; None ends that."""
        key = self._selector.get_key(source)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if act else 0)
        self._selector.modify(source, events, (key.data[0], act))

    def later(self, seconds: float, act: Act) -> int:
        """Call `act` once, after so many seconds; returns a number for `cancel`."""
        number = next(self._numbers)
        heapq.heappush(self._timers, (time.monotonic() + seconds, number, act))
        return number

    def cancel(self, number: int) -> None:
        """The timer of this number will not fire."""
        self._cancelled.add(number)

    def turn(self) -> None:
        """Wait for the next thing to happen, and call back for all that has."""
        wait = None
        if self._timers:
            wait = max(0.0, self._timers[0][0] - time.monotonic())
        for key, mask in self._selector.select(wait):
            act, write = key.data
            if mask & selectors.EVENT_WRITE and write is not None:
                write()
            if mask & selectors.EVENT_READ:
                act()
        while self._timers and self._timers[0][0] <= time.monotonic():
            _, number, due = heapq.heappop(self._timers)
            if number in self._cancelled:
                self._cancelled.discard(number)
            else:
                due()

    def close(self) -> None:
        """Forget everything."""
        self._selector.close()
