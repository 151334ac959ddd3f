"""Which jobs the list shows, and in which order. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sublet.views.job_table import grouped, state
from sublet.wire.rows import JobRow

FILTERS = ("all", "running", "waiting", "ended")
Group = list[JobRow]
"""Jobs that share a line."""

_STATES = ("running", "starting", "stopping", "paused", "waiting", "finished")
_KEYS: dict[str, Callable[[JobRow, float], Any]] = {
    # Who runs, then who waits in the order of the queue, then who ended last.
    "state": lambda row, now: (
        _STATES.index(row.state),
        -(row.since or 0.0) if row.state == "finished" else 0.0,
    ),
    "memory": lambda row, now: (-(row.now or 0), -(row.ceiling or 0)),
    "peak": lambda row, now: -(row.peak or 0),
    "elapsed": lambda row, now: -_elapsed(row, now),
    "name": lambda row, now: row.name,
    "number": lambda row, now: row.id,
}
ORDERS = tuple(_KEYS)


@dataclass(frozen=True)
class Arrangement:
    """What the user has chosen to see."""

    show: str = "all"
    order: str = "state"
    backwards: bool = False
    text: str = ""

    def groups(self, jobs: Iterable[JobRow], now: float) -> list[Group]:
        """The lines of the list."""
        rows = sorted((row for row in jobs if self._shows(row)), key=lambda row: row.id)
        key = _KEYS[self.order]
        groups = sorted(
            grouped(rows), key=lambda group: (key(group[0], now), _STATES.index(group[0].state))
        )
        return groups[::-1] if self.backwards else groups

    def _shows(self, row: JobRow) -> bool:
        kind = {"finished": "ended", "waiting": "waiting"}.get(row.state, "running")
        if self.show not in ("all", kind):
            return False
        words = f"#{row.id} {row.name} {state(row)} {row.device or ''} {row.reason}"
        return self.text.lower() in words.lower()

    def words(self) -> str:
        """What was chosen, for the list's title; empty if nothing was."""
        said = [f"only {self.show}"] if self.show != "all" else []
        said += [f"with “{self.text}”"] if self.text else []
        if (self.order, self.backwards) != ("state", False):
            said.append(f"by {self.order}{', backwards' if self.backwards else ''}")
        return ", ".join(said)


def next_of(choices: Sequence[str], now: str) -> str:
    """The choice after this one; after the last, the first."""
    return choices[(choices.index(now) + 1) % len(choices)]


def _elapsed(row: JobRow, now: float) -> float:
    if row.ran is not None:
        return row.ran
    return now - row.since if row.since is not None and row.ceiling is not None else 0.0
