"""How long a program may run; pauses do not count.

The time spent is written to the attempt's directory at every pause and resumption, so that whoever
takes over continues from there.
"""

from __future__ import annotations

import time

from ..formats import attempt_files

WHY = "time limit"
"""The reason in the exit record of a program that was ended by its limit."""
_RECORD = "runtime.json"


class TimeLimit:
    """The running time of one attempt, in monotonic seconds."""

    def __init__(self, limit: float | None, paused: bool = False, spent: float = 0.0) -> None:
        self.limit = limit
        self.paused = paused
        self._spent = spent
        self._since = time.monotonic()

    @classmethod
    def resume(cls, directory: str, limit: float | None, began: float) -> TimeLimit:
        """Continue what a killed keeper has left; count from `began` if it left nothing."""
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
        """Seconds that it has run."""
        return self._spent + (0.0 if self.paused else time.monotonic() - self._since)

    def left(self) -> float:
        """Seconds until the limit; infinite without a limit, and during a pause."""
        if self.limit is None or self.paused:
            return float("inf")
        return self.limit - self.spent()

    def pause(self, on: bool, directory: str) -> None:
        """Stop or continue counting, and write that down."""
        self._spent, self._since, self.paused = self.spent(), time.monotonic(), on
        record = {"spent": self._spent, "paused": on, "at": self._since}
        attempt_files.write(directory, _RECORD, record)
