"""How an attempt ended, judged from its exit and from what its program left behind."""

import os
import signal
import time

from sublet.backends.backend import Ending
from sublet.domain.job import CANCELLED, Cause, Job, Outcome, Tenant
from sublet.formats.oom_evidence import OomEvidence, read_evidence
from sublet.formats.usage_file import Reading, read_usage

_STOPPED: dict[str, Cause] = {
    CANCELLED: CANCELLED,
    "preempted": "preempted",
    "time limit": "time limit",
}
_UNSEEN = "nobody saw its exit code; it may have done its work"
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGKILL)


def judge(
    job: Job,
    ending: Ending,
    directory: str,
    tenants: tuple[Tenant, ...],
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
    cause = _cause(ending, evidence, code, number)
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
        asked=evidence.asked,
        failures=evidence.failures,
        message=_message(ending, evidence, cause, number) or (_UNSEEN if unseen else ""),
        tenants=tenants if cause == "lease exceeded" else (),
        waited=state.waited,
        startup=max(0.0, began / 1e9 - state.tick) if began else None,
        ran=ran,
        tensorflow=any(usage.runtime_started_ns for usage in usages),
        left=ending.left,
        by_user=interrupted and code != 0 and cause in ("exited", "signalled"),
        unseen=unseen,
        peaks=_peaks(usages, len(state.lease.all)),
    )


def _peaks(usages: list[Reading], devices: int) -> tuple[int, ...]:
    """The peaks on each of several devices; empty for one, or if they are not known."""
    known = [one.cards for one in usages if len(one.cards) == devices]
    return tuple(max(peak for _, peak in one) for one in zip(*known, strict=True))


def _cause(ending: Ending, evidence: OomEvidence, code: int, number: int) -> Cause:
    if ending.stopped:
        return _STOPPED.get(ending.stopped, "stopped")
    if ending.status is None:
        return "lost"
    if code and evidence.uncaught:
        return "lease exceeded"
    if code and evidence.unheard and (not number or number in _CRASHES):
        # The last allocation failed and no out-of-memory error told of it: docs/out-of-memory.md.
        return "lease exceeded"
    return "signalled" if number else "exited"


def _message(ending: Ending, evidence: OomEvidence, cause: Cause, number: int) -> str | None:
    if cause == "lease exceeded" and not evidence.uncaught:
        if number:
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
