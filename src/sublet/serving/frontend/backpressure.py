"""Refuses calls of models whose queue is full, without asking the engine, and not all at once.

A queue that has refused a call is believed to be full for a moment. Meanwhile one call is let
through for each that is done, so that the queue stays as full as it was, and what a flooded model
costs its engine does not grow with the flood.

A client that is refused and comes back at once would keep the processors busy with refusals, which
its model needs: 24 connections where 20 have room were refused 25,000 times a second, and the model
ran half as many rows. So refusals are delayed, and sent together.
"""

import asyncio
import dataclasses
from math import inf

from sublet.channel.codes import Code, QueueFull
from sublet.errors import ServingError

_BELIEVED = 0.02
"""Seconds. Others may have left the queue of whom this front end knows nothing."""
_MORE = 1.25
"""A call with so many times the patience of one that was refused asks the engine."""
_DELAY = 0.01  # Seconds. Whoever is refused has to hear it soon.

Key = tuple[str, int]  # A model and its version.


class DelayedRefusal(ServingError):
    """The error of a refused call; it is sent when `due` is done."""

    def __init__(self, message: str, code: int, due: "asyncio.Future[None]") -> None:
        super().__init__(message, code)
        self.due = due


class DelayedRefusals:
    """The refusals of one event loop that are not due yet."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def refusal(self, message: str) -> DelayedRefusal:
        """A refusal that is due together with those of the same moment."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_later(_DELAY, self._release)
        self._waiting.append(loop.create_future())
        return DelayedRefusal(message, Code.UNAVAILABLE, self._waiting[-1])

    def _release(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


@dataclasses.dataclass(slots=True)
class _FullQueue:
    text: str
    until: float
    patience: float  # Seconds that the refused call had until its deadline.
    free_places: int = 0  # Calls that were done since, less those that were let through.


class Backpressure:
    """Which queues are full, as far as a front end knows. Pure: the caller gives the time."""

    def __init__(self) -> None:
        self._full: dict[Key, _FullQueue] = {}

    def full(self, key: Key, text: str, now: float, deadline: float | None = None) -> None:
        """Its queue has refused a call of this deadline with this text."""
        self._full[key] = _FullQueue(text, now + _BELIEVED, _patience(now, deadline))

    def done(self, key: Key) -> None:
        if self._full and (queue := self._full.get(key)) is not None:
            queue.free_places += 1

    def check(self, key: Key, now: float, deadline: float | None = None) -> None:
        """Raises QueueFull if the queue is; a call that may go takes a place. A queue that is too
        long for a call may be short enough for one with more time."""
        if not self._full or (queue := self._full.get(key)) is None:
            return
        if now >= queue.until:
            del self._full[key]
        elif _patience(now, deadline) > _MORE * queue.patience:
            return
        elif queue.free_places:
            queue.free_places -= 1
        else:
            raise QueueFull(queue.text)


def _patience(now: float, deadline: float | None) -> float:
    return inf if deadline is None else deadline - now
