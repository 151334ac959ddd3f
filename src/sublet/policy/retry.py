"""Whether a job that has ended is tried again, and on what terms.

Pure: the same ending of the same job gives the same answer.
"""

from sublet.domain.job import Again, Job, Outcome
from sublet.units import format_bytes, format_seconds, written_bytes

REQUEUE_CODE = 42
"""A program that exits with it asks to be started again, after it has saved its work."""
FIRST_DELAY = 5.0
LONGEST_DELAY = 600.0
QUICK = 10.0
"""Seconds; an attempt that ends sooner has done no work."""
LOOP = 3
"""So many quick endings of the same kind in a row are a loop."""
FALSE_STARTS = 3
"""So many starts in a row may come to nothing; after more of them there are pauses."""
_LONGEST_PAUSE = 60.0
_CRASHES = ("exited", "signalled", "lost")
"""What a program brings upon itself; the other endings have reasons of their own."""


def again(job: Job, outcome: Outcome, larger: int | None) -> Again | None:
    """The terms of another attempt; None if there is to be none.

    `larger` is a ceiling the device could give after this one was too small.
    """
    spec = job.spec
    if outcome.cause == "lease exceeded":
        if spec.on_oom != "grow" or larger is None:
            return None
        had = format_bytes(job.lease.ceiling) if job.lease else "its lease"
        return Again(f"ran out of memory within {had}", 0.0, larger, forgiven=True)
    if spec.client is not None or loops(job, outcome):
        return None
    if outcome.cause in ("preempted", "lost") and not outcome.unseen:
        return Again(outcome.message or outcome.cause, forgiven=True) if spec.requeue else None
    # One whose end was not seen may have ended well: it is done again only if that was asked for.
    if outcome.cause not in (*_CRASHES, "device full") or outcome.code == 0:
        return None
    if outcome.code == REQUEUE_CODE and outcome.cause == "exited" and spec.requeue:
        return Again(f"asked to be started again (exit code {REQUEUE_CODE})", forgiven=True)
    if job.failures >= spec.retries:
        return None
    delay = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(job.failures, 10))
    return Again(
        f"{ending(outcome)}, retry {job.failures + 1} of {spec.retries} in {format_seconds(delay)}",
        delay,
    )


def pause_after_false_start(job: Job) -> float:
    """Seconds before a job is restarted whose attempt ended before its first line."""
    too_many = job.false_starts - FALSE_STARTS
    return 0.0 if too_many < 0 else min(_LONGEST_PAUSE, 2.0 ** min(too_many, 10))


def loops(job: Job, outcome: Outcome) -> bool:
    """Whether it ends in the same way again and again, without doing any work."""
    if outcome.ran >= QUICK or outcome.cause not in _CRASHES or outcome.code == 0:
        return False
    last = [past.outcome for past in job.past[-(LOOP - 1) :]]
    return len(last) == LOOP - 1 and all(
        one.ran < QUICK and (one.cause, one.code) == (outcome.cause, outcome.code) for one in last
    )


def advice(job: Job, larger: int | None) -> str:
    """What to do about a job that ran out of memory for good."""
    if larger is None:
        return "no more can be given: try a smaller batch"
    grow = "" if job.spec.on_oom == "grow" else ", or --on-oom grow"
    return f"try --memory {written_bytes(larger)}{grow}"


def ending(outcome: Outcome) -> str:
    """How an attempt ended, in a few words."""
    if outcome.by_user:
        return "interrupted (Ctrl-C)"
    match outcome.cause:
        case "exited":
            return "done" if outcome.code == 0 else f"exit code {outcome.code}"
        case "signalled":
            return f"killed by signal {outcome.code - 128}"
        case "lease exceeded":
            return "out of memory"
        case "device full":
            return "others took the device's memory"
        case "dependency":
            return "not started"
        case cause:
            return cause
