"""Changes of jobs as entries of the log."""

from collections.abc import Iterable

from sublet.broker import log
from sublet.broker.counters import ending
from sublet.broker.events import (
    AttemptEnded,
    Change,
    Granted,
    Held,
    LeaseResized,
    NeverRan,
    Postponed,
    Released,
    Reopened,
    StopAsked,
    Submitted,
    Withdrawn,
    WorkerStarted,
)
from sublet.domain.job import Outcome

_NAMES = {
    Submitted: "submitted",
    Reopened: "submitted again",
    Granted: "granted",
    WorkerStarted: "started",
    LeaseResized: "resized",
    StopAsked: "stopping",
    Held: "paused",
    Released: "resumed",
    Postponed: "postponed",
    NeverRan: "not started",
    AttemptEnded: "ended",
    Withdrawn: "withdrawn",
}


def write(changes: Iterable[Change]) -> None:
    """Write these changes, which are on disk."""
    for change in changes:
        if (name := _NAMES.get(type(change.event))) is not None:
            after, before = change.after, change.before
            attempt = before.attempt if before is not None else after.attempt
            whose = {"job": after.id, "name": after.name, "attempt": attempt}
            log.record(name, whose | _facts(change))


def _facts(change: Change) -> dict[str, object]:
    event = change.event
    match event:
        case Submitted(job=job):
            return {"memory": str(job.spec.memory), "device": job.spec.device}
        case Granted(lease=lease):
            held = change.after.holds
            return {
                "device": ", ".join(one.device for one in lease.all),
                "lease_bytes": lease.ceiling,
                "charge_bytes": lease.charge,
                "waited_seconds": round(held.waited, 3) if held is not None else None,
            }
        case WorkerStarted(worker=worker, how=how):
            return {"pid": worker.pid, "start": how}
        case LeaseResized(ceiling=ceiling):
            return {"lease_bytes": ceiling}
        case StopAsked(why=why) | NeverRan(why=why):
            return {"message": why or None}
        case AttemptEnded(outcome=outcome, again=again):
            return {**_outcome(outcome), "queued_again": again is not None}
        case Withdrawn(outcome=outcome):
            return _outcome(outcome)
    return {}


def _outcome(outcome: Outcome) -> dict[str, object]:
    return {
        "outcome": ending(outcome),
        "exit": outcome.code,
        "peak_bytes": outcome.peak,
        "ran_seconds": round(outcome.ran, 3),
        "message": outcome.message or None,
    }
