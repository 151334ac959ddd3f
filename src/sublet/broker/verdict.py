"""How an attempt ended, judged from its exit and from what its program left behind."""

import os
import signal
import time

from msgspec import Struct
from msgspec.structs import replace

from sublet.backends.backend import Ending
from sublet.domain.device import Holder
from sublet.domain.job import (
    CANCELLED,
    Cause,
    EventLog,
    Job,
    Outcome,
    Tenant,
    UncaughtError,
)
from sublet.formats import event_logs, last_error, usage_file
from sublet.formats.oom_evidence import OomEvidence, read_evidence
from sublet.formats.usage_file import Reading, read_usage

_STOPPED: dict[str, Cause] = {
    CANCELLED: CANCELLED,
    "preempted": "preempted",
    "time limit": "time limit",
}
_UNSEEN = "nobody saw its exit code; it may have done its work"
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGKILL)


class Neighbours(Struct, frozen=True):
    """Who else was on the job's device when the job ended."""

    tenants: tuple[Tenant, ...] = ()
    """The other jobs with leases there."""
    holders: tuple[Holder, ...] = ()
    """All processes there, as far as a driver names them."""
    leased: frozenset[int] = frozenset()
    """The processes of the other jobs."""
    overfull: bool = False
    """Whether leases and other programs hold more than there is, so that some lease is not kept."""


def judge(
    job: Job,
    ending: Ending,
    directory: str,
    neighbours: Neighbours,
    interrupted: bool = False,
) -> Outcome:
    """The story of one attempt; reads its directory, so call it before that is removed.

    `interrupted`: its user has sent it a signal that ends programs, such as Ctrl-C.
    """
    state = job.holds
    assert state is not None
    evidence = read_evidence(directory)
    usages = read_usage(directory)
    began = min((usage.main_started_ns for usage in usages if usage.main_started_ns), default=0)
    status = ending.status
    number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else 0
    code = _shell_code(status)
    cause = _cause(ending, evidence, code, number, neighbours.overfull)
    if cause == "stopped" and job.spec.gang is not None and code and evidence.unheard:
        # Its cluster failed of it: others saw an error that does not speak of memory.
        cause = "lease exceeded"
    unseen = cause == "lost" and not ending.rebooted
    ran = ending.ran
    if ran is None:
        ran = time.monotonic() - state.tick
        if ran < 0:  # It began before a reboot, when this clock was another one.
            ran = max(0.0, time.time() - state.since)
    return Outcome(
        cause=cause,
        code=code,
        peak=evidence.peak,
        system_peak=ending.system_peak,
        outside=usage_file.outside(usages),
        asked=evidence.asked,
        failures=evidence.failures,
        message=_message(ending, evidence, cause, number) or (_UNSEEN if unseen else ""),
        tenants=_others(cause, evidence, neighbours, {usage.pid for usage in usages}),
        waited=state.waited,
        startup=max(0.0, began / 1e9 - state.tick) if began else None,
        ran=ran,
        tensorflow=any(usage.runtime_started_ns for usage in usages),
        left=ending.left,
        by_user=interrupted and code != 0 and cause in ("exited", "signalled"),
        unseen=unseen,
        peaks=_peaks(usages, len(state.lease.all)),
        siblings=evidence.siblings if cause == "lease exceeded" else "",
        error=_error(directory) if cause == "exited" and code else None,
        event_logs=read_event_logs(directory),
    )


def judged_elsewhere(job: Job, ending: Ending, interrupted: bool) -> Outcome:
    """The story of an attempt on another machine, whose broker has judged it."""
    state, outcome = job.holds, ending.outcome
    assert state is not None
    assert outcome is not None
    if ending.stopped:
        cause = _STOPPED.get(ending.stopped, "stopped")
        outcome = replace(outcome, cause=cause, message=ending.stopped)
    ended_itself = outcome.cause in ("exited", "signalled")
    return replace(
        outcome, waited=state.waited, by_user=interrupted and outcome.code != 0 and ended_itself
    )


def read_event_logs(directory: str) -> tuple[EventLog, ...]:
    """Where the processes of an attempt have written event files, by what they left in its own
    directory."""
    return tuple(EventLog(one.directory, one.pid, one.since) for one in event_logs.read(directory))


def _error(directory: str) -> UncaughtError | None:
    found = last_error.read(directory)
    return None if found is None else UncaughtError(found.text, found.file, found.line)


def _peaks(usages: list[Reading], devices: int) -> tuple[int, ...]:
    """The peaks on each of several devices; empty for one, or if they are not known."""
    known = [one.cards for one in usages if len(one.cards) == devices]
    return tuple(max(peak for _, peak in one) for one in zip(*known, strict=True))


def _others(
    cause: Cause, evidence: OomEvidence, neighbours: Neighbours, own: set[int]
) -> tuple[Tenant, ...]:
    """Who is named when memory was lacking: those with leases, and of a full device those without.
    What was seen when it was lacking counts before what is there now."""
    if cause == "lease exceeded":
        return neighbours.tenants
    if cause != "device full":
        return ()
    seen = [Holder(*holder) for holder in evidence.holders] or list(neighbours.holders)
    strangers = [one for one in seen if one.pid not in neighbours.leased | own]
    named = (Tenant(f"{one.name} ({one.pid})", one.bytes or 0) for one in strangers)
    return (*named, *neighbours.tenants)


def _cause(ending: Ending, evidence: OomEvidence, code: int, number: int, overfull: bool) -> Cause:
    if ending.stopped:
        return _STOPPED.get(ending.stopped, "stopped")
    if ending.status is None:
        return "lost"
    if code and evidence.uncaught:
        return "device full" if evidence.refused else "lease exceeded"
    if code and evidence.unheard and (not number or number in _CRASHES):
        # The last allocation failed and no out-of-memory error told of it: docs/out-of-memory.md.
        return "device full" if overfull else "lease exceeded"
    return "signalled" if number else "exited"


def _message(ending: Ending, evidence: OomEvidence, cause: Cause, number: int) -> str | None:
    if cause in ("lease exceeded", "device full") and not evidence.uncaught:
        if number and not ending.stopped:
            crash = signal.Signals(number).name
            return f"nothing: TensorFlow crashed ({crash}) when it got no memory for a tensor"
        return "no out-of-memory error: TensorFlow got no memory and called that something else"
    return evidence.message or ending.stopped or ending.note


def _shell_code(status: int | None) -> int:
    if status is None:
        return 255
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)
