"""Callbacks for one thread: when a descriptor can be read or written, and when time has passed."""

import heapq
import itertools
import selectors
import time
from collections.abc import Callable
from typing import Any

Callback = Callable[[], object]


class Reactor:
    """Callbacks for readable descriptors and for moments in time."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callback]] = []
        self._numbers = itertools.count(1)
        self._once: set[Callback] = set()

    def watch(self, source: Any, callback: Callback) -> None:
        """Call `callback` whenever `source` can be read."""
        self._selector.register(source, selectors.EVENT_READ, (callback, None))

    def unwatch(self, source: Any) -> None:
        """Stop watching; a source that is not watched is no error."""
        try:
            self._selector.unregister(source)
        except (KeyError, ValueError):
            return

    def when_writable(self, source: Any, callback: Callback | None) -> None:
        """Also call `callback` when `source` can be written; None ends that."""
        key = self._selector.get_key(source)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if callback else 0)
        self._selector.modify(source, events, (key.data[0], callback))

    def call_later(self, seconds: float, callback: Callback) -> None:
        """Call `callback` once, after this many seconds."""
        entry = (time.monotonic() + seconds, next(self._numbers), callback)
        heapq.heappush(self._timers, entry)

    def call_once(self, seconds: float, callback: Callback) -> None:
        """The same, unless this callback is to be called anyway."""
        if callback in self._once:
            return
        self._once.add(callback)

        def call() -> None:
            self._once.discard(callback)
            callback()

        self.call_later(seconds, call)

    def run_once(self) -> None:
        """Wait for the next thing to happen, and call back for all that has.

        A source that an earlier callback of the same turn has given up is not called any more.
        """
        wait = None
        if self._timers:
            wait = max(0.0, self._timers[0][0] - time.monotonic())
        for key, mask in self._selector.select(wait):
            callback, write = key.data
            if mask & selectors.EVENT_WRITE and write is not None and self._watched(key):
                write()
            if mask & selectors.EVENT_READ and self._watched(key):
                callback()
        while self._timers and self._timers[0][0] <= time.monotonic():
            _, _, due = heapq.heappop(self._timers)
            due()

    def _watched(self, key: selectors.SelectorKey) -> bool:
        now = self._selector.get_map().get(key.fd)
        return now is not None and now.data[0] is key.data[0]

    def close(self) -> None:
        """Stop watching all sources, and close."""
        self._selector.close()
