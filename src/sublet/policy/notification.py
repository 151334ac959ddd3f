"""What people are told of a job that has ended. Pure."""

from sublet.domain.job import CANCELLED, Outcome
from sublet.domain.lease import Lease
from sublet.policy.retry import ending
from sublet.units import format_seconds

Event = dict[str, str | int | float | None]


def notification(job: int, name: str, outcome: Outcome, lease: Lease | None, host: str) -> Event:
    """The fields that a web hook gets as JSON, and a command as variables."""
    done = outcome.cause in ("exited", "stopped") and outcome.code == 0
    cancelled = outcome.cause == CANCELLED or outcome.by_user
    state = "done" if done else "cancelled" if cancelled else "failed"
    why = "" if state != "failed" else f": {ending(outcome)}"
    verb = {"done": "is done", "cancelled": "was cancelled"}.get(state, "failed")
    after = f" after {format_seconds(outcome.ran)}" if outcome.ran else ""
    return {
        "text": f"#{job} {name} on {host} {verb}{after}{why}",
        "number": job,
        "name": name,
        "state": state,
        "exit": outcome.code,
        "cause": outcome.cause,
        "seconds": round(outcome.ran, 3),
        "device": lease.device if lease else None,
        "lease": lease.ceiling if lease else None,
        "peak": outcome.peak,
        "host": host,
    }
