"""Who is to blame when an engine ends: pure bookkeeping, without a clock of its own.

What an engine loaded or ran when it ended is suspect for a while. Engines do not run two suspects
at a time, so the next end says which of them it was; those that ran beside it are free again.
"""

from collections.abc import Iterable
from typing import NamedTuple

Key = tuple[str, int]  # A model's name, and the number of a version.

_MEMORY = 600.0
"""Seconds for which a version is suspect. What ends an engine less often does little harm."""


class Blame:
    """The suspects of all engines, by seconds of one clock; an `engine` stands for its
    successors, too."""

    def __init__(self) -> None:
        self._suspects: dict[Key, _Suspicion] = {}

    def judge(self, engine: object, busy: Iterable[Key], now: float) -> Key | None:
        """An engine has ended while it loaded or ran these. The one that did it, once that is
        clear: it is the only one that was there before, too. Once is not enough, as engines are
        also ended by others."""
        there = set(busy)
        again = [key for key in there if self.until(key) > now]
        if len(again) == 1:
            for key in [key for key, one in self._suspects.items() if one.engine is engine]:
                del self._suspects[key]
            return again[0]
        for key in there:
            self.suspect(engine, key, now)
        return None

    def suspect(self, engine: object, key: Key, now: float) -> None:
        """The next end of this engine with this one is its fault."""
        self._suspects[key] = _Suspicion(engine, now + _MEMORY)

    def until(self, key: Key) -> float:
        """When it stops being suspect; 0 if it is not."""
        found = self._suspects.get(key)
        return 0.0 if found is None else found.until

    def forget(self, key: Key) -> None:
        """Its files have changed, so nothing is held against it."""
        self._suspects.pop(key, None)


class _Suspicion(NamedTuple):
    engine: object
    until: float
