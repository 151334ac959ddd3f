"""Which queues are full, as far as a front end knows: no call is sent to hear just that.

A queue that has refused a call is believed to be full for a moment. Meanwhile one call is let
through for each that is done, so that the queue stays as full as it was, and what a flooded model
costs its engine does not grow with the flood. Pure.
"""

import asyncio

from sublet.channel.codes import Code
from sublet.errors import ServingError

_BELIEVED = 0.02
"""Seconds. Others may have left the queue of whom this front end knows nothing."""

Key = tuple[str, int]  # A model and its version.


class _FullQueue:
    __slots__ = ("free_places", "text", "until")

    def __init__(self, text: str, until: float) -> None:
        self.text = text
        self.until = until
        self.free_places = 0
        """Calls that were done since, less those that were let through."""


class Backpressure:
    """Times are seconds of one clock, given by the caller."""

    def __init__(self) -> None:
        self._full: dict[Key, _FullQueue] = {}

    def full(self, key: Key, text: str, now: float) -> None:
        """Its queue has refused a call with this text."""
        self._full[key] = _FullQueue(text, now + _BELIEVED)

    def done(self, key: Key) -> None:
        if self._full and (queue := self._full.get(key)) is not None:
            queue.free_places += 1

    def check(self, key: Key, now: float) -> None:
        """Raises what a call would hear; one that may go takes a place."""
        if not self._full or (queue := self._full.get(key)) is None:
            return
        if now >= queue.until:
            del self._full[key]
        elif queue.free_places:
            queue.free_places -= 1
        else:
            raise ServingError(queue.text, Code.UNAVAILABLE)


_DELAY = 0.01
"""Seconds. Who is refused has to hear it soon."""


class Later(ServingError):
    """What a call is refused with; it is told when `when` is done."""

    def __init__(self, error: ServingError, when: "asyncio.Future[None]") -> None:
        super().__init__(error.message, error.code)
        self.when = when


class DelayedRefusals:
    """For one event loop."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def next(self) -> "asyncio.Future[None]":
        """Done when those are that were asked for just before."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_later(_DELAY, self._come)
        future = loop.create_future()
        self._waiting.append(future)
        return future

    def _come(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
