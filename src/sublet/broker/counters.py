"""What has happened since this broker began, as numbers that only grow."""

from collections.abc import Iterable

from sublet.broker.events import (
    AttemptEnded,
    Granted,
    LeaseResized,
    NeverRan,
    Submitted,
    Withdrawn,
    WorkerStarted,
)
from sublet.broker.unit_of_work import Change
from sublet.domain.job import Outcome
from sublet.wire.metrics import WAIT_BOUNDS, Counts, Ending


class Counters:
    """Counts changes that are on disk; those that were undone never happened."""

    def __init__(self) -> None:
        self.counts = Counts.none()

    def note(self, changes: Iterable[Change]) -> None:
        """Count these changes."""
        for change in changes:
            self._count(change)

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
