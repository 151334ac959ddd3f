"""What the broker counts and measures, for whoever watches it over time. No job has a name here."""

from typing import Literal, get_args

from msgspec import Struct, field

from sublet.exposition import Spread
from sublet.wire.rows import DeviceRow

Ending = Literal[
    "done",
    "failed",
    "out_of_memory",
    "time_limit",
    "preempted",
    "cancelled",
    "dependency_failed",
    "stopped",
    "lost",
]
WAIT_BOUNDS = (0.01, 0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
"""Seconds."""
STATES = ("waiting", "starting", "running", "stopping", "paused")
"""Of live jobs."""


def _zero() -> dict[Ending, int]:
    """All of them are there from the start: a rate is known only for what was 0 before."""
    return dict.fromkeys(get_args(Ending), 0)


class Counts(Struct):
    """What has happened, in the life of the ledger. None of it ever gets less."""

    waits: Spread
    """Seconds from submission, or from the attempt before, to the grant."""
    submitted: int = 0
    granted: int = 0
    retries: int = 0
    """Attempts after which the job was queued again."""
    false_starts: int = 0
    """Attempts that ended before a line of the program had run."""
    ran: float = 0.0
    """Seconds that all attempts ran, which have ended."""
    starts: dict[str, int] = field(default_factory=lambda: {"warm": 0, "cold": 0})
    resized: dict[str, int] = field(default_factory=lambda: {"grown": 0, "shrunk": 0})
    attempts: dict[Ending, int] = field(default_factory=_zero)
    finished: dict[Ending, int] = field(default_factory=_zero)

    @classmethod
    def none(cls) -> "Counts":
        """The counters of a broker to which nothing has happened."""
        return cls(Spread.of(WAIT_BOUNDS))


class Metrics(Struct, frozen=True, tag="metrics"):
    """All that is measured, at one moment."""

    version: str
    pid: int
    began: float
    """Wall seconds."""
    devices: tuple[DeviceRow, ...]
    jobs: dict[str, int]
    """Live ones by state."""
    nurseries: dict[str, int]
    """By state: warm, warming up, off."""
    longest_wait: float
    """Seconds for which the job has waited that waits longest; 0 if none does."""
    counts: Counts
