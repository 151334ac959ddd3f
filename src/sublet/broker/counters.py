"""What has happened as numbers that only grow, from one broker to the next."""

from collections.abc import Sequence

import msgspec

from sublet.broker.events import (
    AttemptEnded,
    Change,
    Granted,
    LeaseResized,
    NeverRan,
    Submitted,
    Withdrawn,
    WorkerStarted,
)
from sublet.domain.job import Outcome
from sublet.wire.metrics import WAIT_BOUNDS, Counts, Ending


class Counters:
    """Counts changes that are on disk, with all that earlier brokers have counted: what was undone
    never happened. Never changed: more changes make new ones."""

    def __init__(self, kept: str | None = None) -> None:
        self.counts = _read(kept)

    def after(self, changes: Sequence[Change]) -> "Counters":
        """What is counted once these changes are on disk."""
        if not changes:
            return self
        after = Counters(self.text())
        for change in changes:
            after._count(change)
        return after

    def text(self) -> str:
        """All of it, for the next broker."""
        return msgspec.json.encode(self.counts).decode()

    def _count(self, change: Change) -> None:
        counts = self.counts
        match change.event:
            case Submitted():
                counts.submitted += 1
            case Granted():
                counts.granted += 1
                if (held := change.after.holds) is not None:
                    counts.waits.add(WAIT_BOUNDS, held.waited)
            case WorkerStarted(how=how):
                counts.starts["warm" if how == "warm" else "cold"] += 1
            case LeaseResized(ceiling=ceiling):
                lease = change.before.lease if change.before is not None else None
                grown = lease is not None and ceiling > lease.ceiling
                counts.resized["grown" if grown else "shrunk"] += 1
            case NeverRan():
                counts.false_starts += 1
            case AttemptEnded(outcome=outcome, again=again):
                counts.attempts[ending(outcome)] += 1
                counts.ran += outcome.ran
                if again is not None:
                    counts.retries += 1
                else:
                    counts.finished[ending(outcome)] += 1
            case Withdrawn(outcome=outcome):
                counts.finished[ending(outcome)] += 1


def ending(outcome: Outcome) -> Ending:
    """How an attempt or a job ended, in the few words that metrics have for it."""
    if outcome.by_user:
        return "stopped"
    match outcome.cause:
        case "exited" | "signalled":
            return "done" if outcome.code == 0 else "failed"
        case "lease exceeded" | "device full":
            return "out_of_memory"
        case "time limit":
            return "time_limit"
        case "dependency":
            return "dependency_failed"
        case cause:
            return cause


def _read(kept: str | None) -> Counts:
    """What an earlier broker has counted, perhaps one of another version: what that did not count,
    or counted by other sizes, begins at 0."""
    counts = Counts.none()
    try:
        found = msgspec.json.decode(kept or "", type=Counts)
    except msgspec.MsgspecError:
        return counts
    if len(found.waits.buckets) != len(counts.waits.buckets):
        found.waits = counts.waits
    for name in ("starts", "resized", "attempts", "finished"):
        known, kinds = getattr(found, name), getattr(counts, name)
        setattr(found, name, {kind: known.get(kind, 0) for kind in kinds})
    return found
