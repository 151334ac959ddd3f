"""What TensorFlow's pool holds, for a store of models.

Owns looking. On a GPU and on the CPU it is the same allocator, and a lease is its limit; without a
lease there is no limit, and nothing is known of what is used.
"""

import math
import time

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.inside import allocator, current_lease, measure
from sublet.units import format_bytes

_LOOKS = 5
_PAUSE = 0.001


class Meter:
    """The memory pool of this process."""

    def __init__(self) -> None:
        self._lease = current_lease.current()

    @property
    def limit(self) -> int | None:
        return None if self._lease is None else allocator.limit(self._lease)

    def now(self) -> int | None:
        used = None if self._lease is None else allocator.usage(self._lease)
        return None if used is None else used[0]

    def held(self) -> int | None:
        """Bytes in use, without what a batch uses for a moment: the least of a few looks."""
        looks = []
        for look in range(_LOOKS):
            if look:
                time.sleep(_PAUSE)
            used = self.now()
            if used is None:
                return None
            looks.append(used)
        return min(looks)

    def take_peak(self) -> int | None:
        """The most that was in use since the last time this was asked."""
        used = None if self._lease is None else allocator.usage(self._lease)
        if self._lease is None or used is None:
            return None
        board = measure.writer()
        if board is not None:
            # What is learned about this program must not miss the peak that is forgotten now.
            board.note_usage()
        allocator.forget_peak(self._lease)
        return used[1]


PIECES = 8
"""A call that ran out of memory is tried in so many pieces."""
_ABREAST = 4
"""Pieces of a call may run beside each other: as many as an engine has places, as a rule."""
_TELLING = 16
"""A call that took a smaller part of the memory says nothing of one that would take all of it."""
_DOUBT = 2
"""A call is refused if it would take so many times the memory there is: the allocator gives up
to twice of what it is asked for, and counts that."""
_MEMORY = 60.0
"""Seconds for which a call that ran out of memory speaks for others: its neighbours may go."""


class Need:
    """The memory that calls of one signature need. Threads may note at the same time: the last one
    counts."""

    __slots__ = ("_before", "_fits", "_most", "_seen", "_short", "_until", "bounded")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew, for another model."""
        self.bounded = False  # Whether there is anything that would be too large.
        self._seen = self._before = (0, 0)
        """The two largest calls: bytes of their inputs, and bytes that they took."""
        self._fits = math.inf
        """Bytes of inputs that would take all the memory there is."""
        self._most = math.inf
        """Bytes of inputs that would take more, without a doubt."""
        self._short = math.inf  # Bytes of inputs that ran out of memory, until `_until`.
        self._until = 0.0

    def tells(self, size: int) -> bool:
        """Whether a call of this size says something new: measuring it costs a little."""
        return size >= 2 * self._seen[0] and size > 0

    def note(self, size: int, taken: int, available: int) -> None:
        """Note how much of the available memory a call of this size took."""
        self._before, self._seen = self._seen, (size, taken)
        fewer, less = self._before
        self._fits = self._most = math.inf
        if taken > less and taken * _TELLING >= available:
            self._fits = size + (available - taken) * (size - fewer) / (taken - less)
            if fewer:  # Of a single call nobody knows how much any call takes.
                self._most = size + (_DOUBT * available - taken) * (size - fewer) / (taken - less)
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
