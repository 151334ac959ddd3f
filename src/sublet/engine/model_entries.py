"""What is known of one version of a model: where it lies, whether it is in memory, what it costs.

Owns the record and the figures that are drawn from it. Loads nothing, and decides nothing.
"""

import dataclasses
import threading
from typing import Any

from sublet.channel.codes import Code
from sublet.engine import model_sources, paging
from sublet.engine.model_opening import Opened
from sublet.engine.signatures import Bound
from sublet.errors import ServingError

Key = tuple[str, int]

_TURN = 4.0
"""A model with requests stays for so many times what its loading took, and at least a second."""
_RETRY = (5.0, 300.0)
"""Seconds until a load that failed is tried again: at first, and after it has failed often."""


@dataclasses.dataclass(frozen=True)
class Loaded:
    """One version of a model in memory."""

    opened: Opened
    bytes: int  # Of TensorFlow's pool.
    stopped: threading.Event = dataclasses.field(default_factory=threading.Event, compare=False)
    """Set when its calls were interrupted."""

    @property
    def signatures(self) -> dict[str, Bound]:
        return self.opened.signatures


class ModelEntry:
    """One version. Changed with the store's lock held, but for its habit."""

    def __init__(self, key: Key, path: str, options: dict[str, Any], now: float) -> None:
        self.key = key
        self.path = path
        self.options = options
        self.habit = paging.Habit(now)
        self.loads = 0
        self.loading = threading.Lock()
        """Held by the thread that loads it; others wait, and find it loaded."""
        self.loaded: Loaded | None = None
        self.since = 0.0
        self.claimed = 0
        """Bytes that it may take while it is being loaded."""
        self.measured: int | None = None
        self.seconds = 0.0
        self.error: ServingError | None = None
        self.failures = 0
        self.retry = 0.0
        self.stuck = False
        self.forgotten = False

    @property
    def bytes(self) -> int:
        """What it takes: measured, once it has been loaded."""
        return model_sources.estimate(self.path) if self.measured is None else self.measured

    @property
    def pinned(self) -> bool:
        return bool(self.options.get("pin"))

    def fail(self, error: ServingError, now: float) -> None:
        """It could not be loaded. A lack of memory passes; what is broken stays so for a while."""
        if error.code != Code.RESOURCE_EXHAUSTED:
            first, most = _RETRY
            self.error = error
            self.retry = now + min(most, first * 2**self.failures)
            self.failures += 1

    def residency(self, busy: bool) -> paging.Residency:
        """What it takes. While it is being loaded it is as good as pinned."""
        return paging.Residency(
            self.key,
            self.claimed or self.bytes,
            self.seconds,
            self.since,
            self.habit,
            busy=busy or bool(self.claimed),
            pinned=self.pinned or self.stuck,
            hold=float(self.options.get("hold_seconds") or 0.0),
            busy_hold=float("inf") if self.claimed else max(1.0, _TURN * self.seconds),
            idle=float(self.options.get("idle_seconds") or 0.0),
        )

    def statistics(self, now: float) -> dict[str, Any]:
        """The version as it stands. Its state is known, loading, ready, failed, or stuck: loading
        without end, and not to be stopped."""
        state = "ready" if self.loaded is not None else "known"
        if self.stuck:
            state = "stuck"
        elif self.claimed:
            state = "loading"
        elif self.loaded is None and self.error is not None:
            state = "failed"
        used = self.habit.used
        return {
            "model": self.key[0],
            "version": self.key[1],
            "state": state,
            "bytes": self.bytes,
            "measured": self.measured is not None,
            "load_seconds": self.seconds,  # Of the last load, 0 before the first.
            "loads": self.loads,
            "idle": None if used is None else max(0.0, now - used),
            "pinned": self.pinned,
            "error": "" if self.error is None else self.error.message,
        }
