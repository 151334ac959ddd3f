"""How much memory the calls of a model take, and so how large one may be.

Owns what was seen, by the bytes of a call's inputs, and what follows from it. Pure. TensorFlow says
that memory is out only after ten seconds, in which nobody else has that memory or that thread; so a
call that is known not to fit is split, or refused, before it begins.
"""

from __future__ import annotations

import math

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.units import format_bytes

PIECES = 8
"""A call that ran out of memory is tried in so many pieces."""
_ABREAST = 4
"""Pieces of a call may run beside each other: as many as an engine has places, as a rule."""
_TELLING = 16
"""A call that took a smaller part of the memory says nothing of one that would take all of it."""
_DOUBT = 2
"""A call is refused if it would take so many times the memory there is: the allocator gives up to
twice of what it is asked for, and counts that."""
_MEMORY = 60.0
"""Seconds for which a call that ran out of memory speaks for others: its neighbours may go."""


class Need:
    """Of one signature. Threads may note at the same time: the last one counts."""

    __slots__ = ("_before", "_fits", "_most", "_seen", "_short", "_until", "bounded")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """It is another model now."""
        self.bounded = False
        """Whether there is anything that would be too large."""
        self._seen = self._before = (0, 0)
        """The two largest calls: bytes of their inputs, and bytes that they took."""
        self._fits = math.inf
        """Bytes of inputs that would take all the memory there is."""
        self._most = math.inf
        """Bytes of inputs that would take more, without a doubt."""
        self._short = math.inf
        """Bytes of inputs that did, until then."""
        self._until = 0.0

    def tells(self, size: int) -> bool:
        """Whether a call of this size would say something new: the memory that it takes is then
        looked at, which costs a little."""
        return size >= 2 * self._seen[0] and size > 0

    def note(self, size: int, taken: int, room: int) -> None:
        """A call of this size took so much, where there was so much room."""
        self._before, self._seen = self._seen, (size, taken)
        fewer, less = self._before
        self._fits = self._most = math.inf
        if taken > less and taken * _TELLING >= room:
            self._fits = size + (room - taken) * (size - fewer) / (taken - less)
            if fewer:  # Of a single call nobody knows how much any call takes.
                self._most = size + (_DOUBT * room - taken) * (size - fewer) / (taken - less)
        self.bounded = self._fits < math.inf or self._short < math.inf

    def note_short(self, size: int, now: float) -> None:
        """A call of this size ran out of memory, though nothing else ran."""
        self._short, self._until, self.bounded = size, now + _MEMORY, True

    def piece(self, now: float) -> float:
        """Bytes of inputs that are run at once, of a call that can be split."""
        if not self.bounded:
            return math.inf
        return self._known(now) / _ABREAST

    def refusal(self, size: float, now: float) -> ServingError | None:
        """Why a call of this size, or one row of it if it can be split, is not even tried."""
        most = min(self._most, self._short if now < self._until else math.inf)
        if size < most or size <= self._seen[0]:
            return None
        return ServingError(
            f"Out of memory: {format_bytes(int(size))} of inputs at once are too much for this "
            f"model in this engine, which has memory for {format_bytes(int(self._known(now)))} or "
            "a little more. Send less at a time, or give the engine more: --memory (in Python, "
            "sublet.Engine(memory=…)).",
            Code.RESOURCE_EXHAUSTED,
        )

    def _known(self, now: float) -> float:
        """Bytes of inputs that fit, as far as that is known."""
        return min(self._fits, self._short / 2 if now < self._until else math.inf)
