"""Refusals that are told together, a moment after the first of them.

A client that is refused and comes back at once would keep the processors busy with refusals, which
its model needs: 24 connections where 20 have room were refused 25,000 times a second, and the model
ran half as many rows. Owns when refusals are told; who is refused is `backpressure.py`'s to say.
"""

import asyncio

from sublet.errors import ServingError

_MOMENT = 0.01
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
            loop.call_later(_MOMENT, self._come)
        future = loop.create_future()
        self._waiting.append(future)
        return future

    def _come(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
