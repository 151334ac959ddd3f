"""`sublet.run` and `sublet.status`."""

import os
import sys
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

import msgspec
from msgspec import Struct

from sublet.client import job_request
from sublet.client.connection import ask
from sublet.client.run import run_in_foreground
from sublet.domain.job import Cause, OnOom
from sublet.domain.lease import Lease
from sublet.domain.profile import Profile
from sublet.errors import SubletError
from sublet.home import Home
from sublet.wire.messages import AskStatus, Ended, Granted, Retried, Snapshot, Started

if TYPE_CHECKING:
    from sublet.client.job_follower import Listener
    from sublet.client.profile_starts import BackgroundProfile

Stream = IO[str] | IO[bytes] | int | None


class Report(Struct, frozen=True):
    """How a run went. Sizes are in bytes, times in seconds."""

    job: int
    name: str
    code: int
    cause: Cause
    lease: int | None
    """The ceiling of its lease, at the end."""
    floor: int | None
    """The ceiling with which it began: an elastic lease may have grown."""
    charge: int | None
    device: str | None
    """Of several, the first; `cards` has them all."""
    peak: int | None
    """The most that TensorFlow's allocator held; None if it could not be measured."""
    system_peak: int | None
    """The most that the whole process tree added to the machine."""
    outside: int | None
    """The most that its processes held of a GPU beside TensorFlow's pools; None if unknown."""
    waited: float
    startup: float | None
    """From the grant to the program's first line."""
    ran: float
    how: str
    """`warm`, or `cold` and why."""
    attempts: int
    suggest: int | None
    """After an out-of-memory: a ceiling worth trying."""
    asked: int | None = None
    """After an out-of-memory: what the allocation that failed had asked for, if known."""
    cards: tuple["CardReport", ...] = ()
    """The leases of a job with several GPUs, one on each, in the order in which it saw them. Above
    are the first of them, and the largest of their peaks."""
    profile: Profile | None = None
    """What was recorded, if that was asked for."""

    @classmethod
    def of(cls, name: str, ended: Ended) -> "Report":
        """The report of a job that has ended."""
        outcome, lease = ended.outcome, ended.lease
        return cls(
            job=ended.job,
            name=name,
            code=outcome.code,
            cause=outcome.cause,
            lease=lease.ceiling if lease else None,
            floor=(lease.floor or lease.ceiling) if lease else None,
            charge=lease.charge if lease else None,
            device=lease.device if lease else None,
            peak=outcome.peak,
            system_peak=outcome.system_peak,
            outside=outcome.outside,
            waited=outcome.waited,
            startup=outcome.startup,
            ran=outcome.ran,
            how=ended.how,
            attempts=ended.attempt,
            suggest=ended.suggest,
            asked=outcome.asked,
            cards=_cards(lease, outcome.peaks),
        )


class CardReport(Struct, frozen=True):
    """What a job with several GPUs had on one of them. Sizes are in bytes."""

    device: str
    lease: int
    charge: int
    peak: int | None


def _cards(lease: Lease | None, peaks: tuple[int, ...]) -> tuple[CardReport, ...]:
    if lease is None or not lease.also:
        return ()
    known: tuple[int | None, ...] = peaks or (None,) * len(lease.all)
    return tuple(
        CardReport(one.device, one.ceiling, one.charge, peak)
        for one, peak in zip(lease.all, known, strict=True)
    )


class Quiet:
    """A listener that does nothing."""

    def waits(self, reason: str) -> None: ...
    def granted(self, message: Granted) -> None: ...
    def started(self, message: Started) -> None: ...
    def lacks_memory(self, reason: str) -> None: ...

    def retried(self, message: Retried) -> None: ...


def run(
    words: Sequence[str],
    memory: str = "auto",
    *,
    device: str | None = None,
    gpus: int | None = None,
    cpus: int | None = None,
    on_oom: OnOom = "fail",
    name: str | None = None,
    python: str | None = None,
    cold: bool = False,
    leave_children: bool = False,
    fence: bool | None = None,
    notify: str | None = None,
    on: str | None = None,
    profile: bool | str | os.PathLike[str] = False,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    listener: "Listener | None" = None,
) -> Report:
    """Run a program under a lease, like `sublet run`, and return when it has ended.

    May be called from any thread. The program ends when this process does. With `profile`, its
    first steps are profiled; the files are left beside its log, or in the directory that is named.
    """
    logdir = None
    if not isinstance(profile, bool):
        from sublet.client.profile import checked_directory

        logdir = checked_directory(profile)
    spec = job_request.job(
        words,
        memory,
        device=device,
        gpus=gpus,
        cpus=cpus,
        on_oom=on_oom,
        name=name,
        python=python,
        cold=cold,
        leave_children=leave_children,
        fence=fence,
        notify=notify,
        on=on,
    )
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    streams = [_number(given, own) for own, given in enumerate((stdin, stdout, stderr))]
    came: list[Profile | SubletError] = []
    recording: list[BackgroundProfile] = []

    def record(job: int) -> None:
        from sublet.client.profile_starts import BackgroundProfile

        recording.append(BackgroundProfile(job, logdir, came.append))
        recording[0].start()

    ended = run_in_foreground(
        spec,
        Home.find(),
        listener or Quiet(),
        streams,
        pass_signals=False,
        on_accepted=record if profile is not False else lambda job: None,
    )
    for thread in recording:
        thread.finish()
    report = Report.of(str(spec["name"]), ended)
    made = next((one for one in came if isinstance(one, Profile)), None)
    return report if made is None else msgspec.structs.replace(report, profile=made)


class Status(Snapshot, frozen=True):
    """A snapshot, which a notebook shows as tables."""

    def _repr_html_(self) -> str:
        import time

        from sublet.views.status_table import draw_html

        return draw_html(self, time.time())


def status() -> Status:
    """Devices and leases, who holds what, who waits and why."""
    snapshot = ask(AskStatus(), Snapshot)
    return Status(*(getattr(snapshot, name) for name in Snapshot.__struct_fields__))


def _number(stream: Stream, own: int) -> int:
    if stream is None:
        return own
    return stream if isinstance(stream, int) else stream.fileno()
