"""The local backend: attempts as processes of this machine, started warm from nurseries.

job, lease ──▶ worker spec ──▶ launcher ──▶ nursery or cold keeper ──▶ worker
"""

import errno
import os
from collections.abc import Callable, Sequence, Set

import msgspec

from sublet.backends.backend import LaunchFailed, Reports
from sublet.backends.local import leftovers
from sublet.backends.local.in_process_leases import InProcessLeases
from sublet.backends.local.launcher import Launcher
from sublet.backends.local.nurseries import NurseryKey
from sublet.backends.local.worker_specs import (
    lease_terms,
    make_fence_file,
    text_environment,
    worker_spec,
)
from sublet.domain.device import Device
from sublet.domain.job import Job, Running
from sublet.domain.nursery import Nursery
from sublet.formats import packets
from sublet.home import Home
from sublet.keeper import output_files
from sublet.reactor import Reactor
from sublet.wire.rows import NurseryRow

_NO_PROGRAM = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC, errno.ELOOP)
"""What starting an interpreter fails with that is not there."""


class LocalBackend:
    """Implements `Backend` with a launcher for programs and a watch over in-process leases."""

    def __init__(self, reactor: Reactor, home: Home) -> None:
        self._reactor = reactor
        self._home = home

    def report_to(self, reports: Reports) -> None:
        self._launcher = Launcher(self._reactor, self._home.runs, self._home.log, reports)
        self._in_process = InProcessLeases(self._reactor, self._home.runs, reports)

    def unready(self, job: Job, room: Callable[[], int]) -> str:
        """A job that can start warm waits for its nursery, which also settles what that one
        holds. If there is no room for it, the job is started cold: that costs about as much as
        both, and the job waits for it in the queue, where nobody is passed for ever."""
        key = self._nursery_key(job)
        if key is None:
            return ""
        try:
            nursery = self._launcher.nurseries.find(key, room)
        except OSError as error:
            # Without its interpreter, the job is started cold, and fails by itself.
            if error.errno in _NO_PROGRAM:
                return ""
            raise LaunchFailed("start", "its nursery cannot be started", error) from error
        loading = "TensorFlow is being loaded, once for all programs"
        return loading if nursery is not None and nursery.state == "warming up" else ""

    def launch(self, job: Job, devices: Sequence[Device], streams: Sequence[int] | None) -> None:
        self.start(job, job, devices, streams)

    def start(
        self, job: Job, run: Job, devices: Sequence[Device], streams: Sequence[int] | None
    ) -> None:
        """Start `run`, which is the job itself or what stands for it here."""
        own: list[int] = []
        try:
            if streams is None:
                logs = str(self._home.logs)
                own = output_files.open_streams(logs, job.attempt_id, job.spec.split)
        except OSError as error:
            raise LaunchFailed("log", "its log cannot be opened", error) from error
        try:
            make_fence_file(run, devices, self._home)
            self._launcher.start(
                job.attempt_id,
                record=msgspec.json.encode(job),
                spec=worker_spec(run, devices, self._home),
                mark=job.lease_token,
                streams=own if streams is None else list(streams),
                cold=run.spec.cold,
                key=self._nursery_key(run),
            )
        except OSError as error:
            raise LaunchFailed("start", "it cannot be started", error) from error
        finally:
            packets.close(own)

    def offer(self, job: Job, devices: Sequence[Device]) -> str:
        assert job.spec.in_process is not None
        try:
            self._in_process.offer(job.attempt_id, msgspec.json.encode(job), job.spec.in_process)
        except OSError as error:
            raise LaunchFailed("start", "its lease cannot be offered", error) from error
        return lease_terms(job, devices, self._home).to_json()

    def check_offer(self, attempt_id: str) -> None:
        self._in_process.settle(attempt_id)

    def adopt(self, job: Job, rebooted: bool) -> None:
        known = job.holds if isinstance(job.holds, Running) else None
        if job.spec.in_process is not None:
            process = job.spec.in_process
            self._in_process.adopt(job.attempt_id, process, known is not None, rebooted)
            return
        self._launcher.adopt(
            job.attempt_id,
            job.lease_token,
            rebooted,
            None if known is None else known.keeper,
            None if known is None else known.worker,
            job.spec.time,
        )

    def stop(self, attempt_id: str, why: str, grace: float) -> None:
        self._launcher.stop(attempt_id, why, grace)

    def abandon(self, attempt_id: str, why: str) -> None:
        self._launcher.abandon(attempt_id, why)

    def signal(self, attempt_id: str, number: int) -> None:
        self._launcher.signal(attempt_id, number)

    def pause(self, attempt_id: str) -> None:
        self._launcher.pause(attempt_id, True)

    def resume(self, attempt_id: str) -> None:
        self._launcher.pause(attempt_id, False)

    def set_duty(self, attempt_id: str, share: float) -> None:
        self._launcher.set_duty(attempt_id, share)

    def confine(self, attempt_id: str, processors: tuple[int, ...]) -> None:
        self._launcher.confine(attempt_id, processors)

    def forget(self, attempt_id: str) -> None:
        self._launcher.forget(attempt_id)

    def sweep(self, live: Set[str]) -> None:
        leftovers.sweep(self._home.runs, live)

    def nurseries(self) -> tuple[NurseryRow, ...]:
        return self._launcher.nurseries.rows()

    def standing_nurseries(self) -> tuple[Nursery, ...]:
        return self._launcher.nurseries.standing()

    def nursery_of(self, job: Job) -> int | None:
        key = self._nursery_key(job)
        return None if key is None else self._launcher.nurseries.pid(key)

    def reconsider_nurseries(self, room: int) -> bool:
        return self._launcher.nurseries.reconsider(room)

    def end_nursery(self, pid: int) -> None:
        self._launcher.nurseries.end(pid)

    def reap(self) -> None:
        """Collect children that have ended; call it on SIGCHLD."""
        self._launcher.reap()

    def close(self) -> None:
        self._launcher.close()
        self._in_process.close()

    def _nursery_key(self, job: Job) -> NurseryKey | None:
        """The nursery this job could come from; None for a program that is not Python, or is
        started cold."""
        python = job.spec.program.python
        if not python or job.spec.cold or job.spec.in_process is not None:
            return None
        return self._launcher.nurseries.key(os.fsdecode(python), text_environment(job))
