"""How long a program has run, and when that is enough.

Monotonic seconds; a pause does not count. The count is left in the attempt's directory whenever
its pace changes, so that whoever takes over goes on from there.
"""

from __future__ import annotations

import time

from ..formats import attempt_files

WHY = "time limit"
"""What an exit record says of a program that was ended because of it."""
_RECORD = "runtime.json"


class TimeLimit:
    """The count of one attempt."""

    def __init__(self, limit: float | None, paused: bool = False, spent: float = 0.0) -> None:
        self.limit = limit
        self.paused = paused
        self._spent = spent
        self._since = time.monotonic()

    @classmethod
    def resume(cls, directory: str, limit: float | None, began: float) -> TimeLimit:
        """The count that a killed keeper has left; from `began` on if it never changed its pace."""
        record = attempt_files.read(directory, _RECORD) or {}
        spent, at = record.get("spent", -1), record.get("at", -1)
        now = time.monotonic()
        if not attempt_files.is_number(spent, 0, now) or not attempt_files.is_number(at, 0, now):
            return cls(limit, spent=max(0.0, now - began))
        found = cls(limit, record.get("paused") is True, spent)
        if not found.paused:
            found._spent += now - at
        return found

    def spent(self) -> float:
        """Seconds that count."""
        return self._spent + (0.0 if self.paused else time.monotonic() - self._since)

    def left(self) -> float:
        """Seconds until the limit; without one, or in a pause, there is no end to them."""
        if self.limit is None or self.paused:
            return float("inf")
        return self.limit - self.spent()

    def pause(self, on: bool, directory: str) -> None:
        """Stop or go on counting, and write that down."""
        self._spent, self._since, self.paused = self.spent(), time.monotonic(), on
        record = {"spent": self._spent, "paused": on, "at": self._since}
        attempt_files.write(directory, _RECORD, record)
