"""Attempts on the nodes of Ray clusters, beside those on this machine.

    job, lease ──▶ order ──▶ relay, under a keeper here ──▶ bridge ──▶ agent ──▶ the node's broker

What an attempt on a node has here is its relay: a process that the local backend runs like any
other, with the program's streams. So logs, signals, clients and a broker that takes over are those
of one machine.
"""

import contextlib
import signal
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from sublet.backends.backend import Ending, LaunchFailed, Reports
from sublet.backends.local.backend import LocalBackend
from sublet.backends.ray import orders
from sublet.backends.ray.cluster import Cluster, clusters
from sublet.domain.device import Device
from sublet.domain.job import Job, Process
from sublet.home import Home
from sublet.reactor import Reactor

_AGAIN = 5.0
"""Seconds after which jobs that wait for a cluster are looked at again."""
_PASSED_ON = {signal.SIGSTOP: signal.SIGTSTP}
"""A relay cannot see the one, and passes it on as the other."""


class RayBackend(LocalBackend):
    """Implements `Backend` for jobs of this machine and of clusters."""

    def __init__(self, reactor: Reactor, home: Home) -> None:
        super().__init__(reactor, home)
        self._away: dict[str, Job] = {}
        """The attempts that run on nodes."""

    def report_to(self, reports: Reports) -> None:
        self._reports = reports
        super().report_to(_Reports(reports, self._home, self._away))

    def unready(self, job: Job, room: Callable[[], int]) -> str:
        if not job.spec.on:
            return super().unready(job, room)
        cluster = Cluster(self._home, job.spec.on)
        with contextlib.suppress(OSError):
            if cluster.bridged():
                cluster.want()
            else:
                cluster.start()
        self._reactor.call_once(_AGAIN, self._reports.nurseries_changed)
        return cluster.fault()

    def launch(self, job: Job, devices: Sequence[Device], streams: Sequence[int] | None) -> None:
        if not job.spec.on:
            super().launch(job, devices, streams)
            return
        try:
            orders.make(job, devices, self._home)
        except OSError as error:
            raise LaunchFailed("start", "it cannot be started", error) from error
        self._away[job.attempt_id] = job
        here = replace(devices[0], kind="cpu", uuid=None)
        self.start(job, orders.relay_of(job, self._home), [here] * len(devices), streams)

    def adopt(self, job: Job, rebooted: bool) -> None:
        if job.spec.on:
            self._away[job.attempt_id] = job
            job = orders.relay_of(job, self._home)
        super().adopt(job, rebooted)

    def stop(self, attempt_id: str, why: str, grace: float) -> None:
        if attempt_id in self._away:
            with contextlib.suppress(OSError):
                orders.note_stop(self._home.runs / attempt_id)
            grace += orders.GRACE
        super().stop(attempt_id, why, grace)

    def signal(self, attempt_id: str, number: int) -> None:
        if attempt_id in self._away:
            number = _PASSED_ON.get(signal.Signals(number), number)
        super().signal(attempt_id, number)

    def pause(self, attempt_id: str) -> None:
        if attempt_id in self._away:
            self.signal(attempt_id, signal.SIGTSTP)
        else:
            super().pause(attempt_id)

    def resume(self, attempt_id: str) -> None:
        if attempt_id in self._away:
            self.signal(attempt_id, signal.SIGCONT)
        else:
            super().resume(attempt_id)

    def set_duty(self, attempt_id: str, share: float) -> None:
        if attempt_id not in self._away:
            super().set_duty(attempt_id, share)

    def confine(self, attempt_id: str, processors: tuple[int, ...]) -> None:
        if attempt_id not in self._away:
            super().confine(attempt_id, processors)

    def close(self) -> None:
        for cluster in clusters(self._home):
            with contextlib.suppress(OSError):
                cluster.unwant()
        super().close()

    def nursery_of(self, job: Job) -> int | None:
        return None if job.spec.on else super().nursery_of(job)


class _Reports:
    """Puts the end of the program in the place of the end of its relay."""

    def __init__(self, reports: Reports, home: Home, away: dict[str, Job]) -> None:
        self._to = reports
        self._home = home
        self._away = away

    def started(self, attempt_id: str, keeper: Process, worker: Process, how: str) -> None:
        if (job := self._away.get(attempt_id)) is not None and job.lease is not None:
            how = f"on {job.lease.where}"
        self._to.started(attempt_id, keeper, worker, how)

    def sampled(self, attempt_id: str, now: int, peak: int, pids: list[int], busy: float) -> None:
        if attempt_id not in self._away:
            self._to.sampled(attempt_id, now, peak, pids, busy)

    def ended(self, attempt_id: str, ending: Ending) -> None:
        job = self._away.pop(attempt_id, None)
        if job is None:
            self._to.ended(attempt_id, ending)
            return
        end = orders.read_end(self._home.runs / attempt_id)
        if end is not None and end.outcome is None:
            self._to.never_ran(attempt_id, end.why)
            return
        if end is not None:
            ending = replace(ending, outcome=end.outcome, how=end.how)
        self._to.ended(attempt_id, ending)

    def never_ran(self, attempt_id: str, why: str) -> None:
        self._away.pop(attempt_id, None)
        self._to.never_ran(attempt_id, why)

    def nurseries_changed(self) -> None:
        self._to.nurseries_changed()
