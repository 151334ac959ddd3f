"""Time behind a protocol, so that tests and replays can bring their own.

Monotonic time decides; wall time is only ever shown.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Where the broker gets its time from."""

    def now(self) -> float:
        """Monotonic seconds; only differences mean anything."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch, for people."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
