"""Leases that grow while their programs run, and give back what they do not need.

    TensorFlow's allocator ──dump-P_*──▶ ask ──▶ policy.growth ──▶ LeaseResized ──commit──▶ FIFO
    fence ──lack-P-N-B──▶ ask ──▶ policy.growth ──▶ LeaseResized ──commit──▶ its bound
    worker ──limit-P──▶ what was not needed goes back to the device

An allocation that does not fit leaves a file in the attempt's directory and waits for ten seconds;
this hears of the file, and has the lease raised if there is room. A raise is committed before the
worker hears of it. A lease shrinks only when its worker has confirmed the smaller limit, never when
that was asked. Everything a later broker needs is in the ledger and in the attempt's directory.
"""

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from sublet.broker.device_usage import DeviceUsage
from sublet.broker.effects import RaiseLimit, SettleNested
from sublet.broker.events import LeaseResized
from sublet.broker.job_clients import JobClients
from sublet.broker.job_control import JobControl
from sublet.broker.nested_leases import NestedLeases
from sublet.broker.unit_of_work import UnitOfWork
from sublet.clock import Clock
from sublet.domain.job import Job, Running
from sublet.domain.lease import Lease
from sublet.formats import attempt_files, fence_file
from sublet.formats.inotify import DirectoryWatch
from sublet.formats.usage_file import read_usage
from sublet.keeper import process_tree
from sublet.policy import growth
from sublet.policy.trimming import Sample, thinned, trimmed
from sublet.policy.wait_queue import WaitQueue
from sublet.reactor import Reactor
from sublet.units import MiB
from sublet.wire import messages

_GIVES_UP = 12.0
"""Seconds after which an allocation that waited has succeeded or failed, with some to spare."""
_UNWATCHED = 0.25
"""Seconds between looks at the directories where the system has no more watchers to give."""


@dataclass
class _Attempt:
    """What is known of one attempt under an elastic lease."""

    job: int
    directory: str
    watch: int | None = None
    pid: int = 0
    """The process in which an allocation waits; 0 if none does."""
    since: float = 0.0
    """When it began to wait, on the broker's clock."""
    lack: str = ""
    """The file by which its fence asks; empty if TensorFlow's pool lacks memory."""
    need: int = 0
    """The bytes that its fence lacks; nobody knows how many the pool does."""
    steps: int = 0
    raised_at: float = 0.0
    """When the last raise was decided, by the wall clock: older dumps are answered. A program may
    have it, and need more, before it is sent: it reads of the new ceiling in a file, too."""
    used: set[str] = field(default_factory=set)
    """The FIFOs that were written to."""
    answered: set[str] = field(default_factory=set)
    """The files of fences that were answered."""
    before: int = 0
    """The ceiling before a change that its worker has not confirmed; 0 if there is none."""
    asked: int = 0
    """The ceiling that the worker was asked for then."""
    samples: list[Sample] = field(default_factory=list)


class ElasticLeases:
    """Hears of programs that need more memory, and moves their ceilings."""

    def __init__(
        self,
        work: UnitOfWork,
        usage: DeviceUsage,
        nested_leases: NestedLeases,
        control: JobControl,
        clients: JobClients,
        clock: Clock,
        reactor: Reactor,
        runs: Path,
        lacking: dict[int, str],
    ) -> None:
        """`lacking` says of jobs in which an allocation waits what it waits for; kept up to date
        for whoever looks."""
        self._work = work
        self._usage = usage
        self._nested_leases = nested_leases
        self._control = control
        self._clients = clients
        self._clock = clock
        self._reactor = reactor
        self._runs = runs
        self._lacking = lacking
        self._attempts: dict[str, _Attempt] = {}
        self._watched: dict[int, _Attempt] = {}
        self._watch: DirectoryWatch | None = None
        with contextlib.suppress(OSError):
            self._watch = DirectoryWatch()
            reactor.watch(self._watch, self._read)

    @property
    def waits(self) -> bool:
        """Whether an allocation waits for memory."""
        return any(one.pid for one in self._attempts.values())

    def adopt(self) -> None:
        """Go on with what an earlier broker has left: its raises may not have reached anybody."""
        self.note([job.id for job in self._work.state.holding()])
        for one in self._attempts.values():
            self._nested_leases.settle(one.job)

    def note(self, changed: list[int]) -> None:
        """These jobs have changed: watch those that run under elastic leases, and no others."""
        for number in changed:
            job = self._work.state.get(number)
            if job is not None and _is_elastic(job) and job.attempt_id not in self._attempts:
                self._add(job)
        live = {one.job: name for name, one in self._attempts.items()}
        for number in changed:
            job, name = self._work.state.get(number), live.get(number)
            if name is not None and (job is None or job.attempt_id != name or job.lease is None):
                self._remove(name)

    def plan(self, queue: WaitQueue) -> None:
        """Raise the leases of those who ask, as far as there is room."""
        asks = []
        for name, one in self._attempts.items():
            job = self._job(name, one)
            if one.pid and (self._clock.now() - one.since > _GIVES_UP or _has_ended(one)):
                one.pid = 0
            elif one.pid and job is not None and job.lease is not None:
                asks.append(self._ask(job, job.lease, one))
        self._lacking.clear()
        if not asks:
            return
        plan = growth.plan(self._usage.capacities(), queue, asks)
        for grant in plan.raises:
            self._raise(self._work.state[grant.job], grant.ceiling)
        for preemption in plan.preempt:
            self._control.stop(self._work.state[preemption.job], "preempted")
        for number, why in plan.waits.items():
            self._lacking[number] = why
            self._clients.send_if_new(number, messages.LacksMemory(why))

    def send(self, effect: RaiseLimit) -> None:
        """The raise is on disk: let the process that waits have it."""
        one = self._attempts.get(effect.attempt_id)
        if one is None:
            return
        one.pid, one.steps = 0, one.steps + 1
        one.answered.add(one.lack)
        for fifo in self._fifos(one, effect.pid)[:1]:
            one.used.add(fifo)
            attempt_files.send_limit(fifo, effect.limit)

    def trim(self, waits: bool) -> None:
        """Ask settled programs for the room that they do not need, if somebody waits for it."""
        for name, one in self._attempts.items():
            job = self._job(name, one)
            # What is lent now and then looks like room that is never needed. A notebook that stands
            # still has not settled: its owner reads.
            if job is None or job.lease is None or job.spec.in_process is not None:
                continue
            if one.pid or one.before or self._nested_leases.has_lent(job):
                continue
            # On a GPU XLA tunes kernels with memory that it does not wait for: what was given back
            # could not come again in time.
            if self._usage.devices[job.lease.device].kind == "gpu":
                continue
            usages = [usage for usage in read_usage(one.directory) if usage.runtime_started_ns]
            if len(usages) != 1:
                continue  # Each process has a pool of its own: there is not one peak.
            sample = Sample(self._clock.now(), usages[0].current, usages[0].peak)
            one.samples = thinned([*one.samples, sample])
            kept = trimmed(one.samples, job.lease.ceiling) if waits else None
            if kept is not None:
                kept = max(kept, self._fenced(one, job.lease))
                if kept >= job.lease.ceiling:
                    continue
                one.before, one.asked = job.lease.ceiling, kept // MiB * MiB
                with contextlib.suppress(OSError):
                    attempt_files.write_ceiling(one.directory, one.asked)

    @property
    def watches(self) -> bool:
        """Whether there are leases that could be trimmed."""
        return bool(self._attempts)

    def _add(self, job: Job) -> None:
        one = _Attempt(job.id, str(self._runs / job.attempt_id))
        self._attempts[job.attempt_id] = one
        if self._watch is not None:
            with contextlib.suppress(OSError):
                one.watch = self._watch.watch(one.directory)
                self._watched[one.watch] = one
        self._look(one)
        if one.watch is None:
            self._reactor.call_once(_UNWATCHED, self._look_at_all)

    def _remove(self, name: str) -> None:
        one = self._attempts.pop(name)
        if one.watch is not None and self._watch is not None:
            self._watched.pop(one.watch, None)
            self._watch.unwatch(one.watch)

    def _read(self) -> None:
        """Hear what has come to the directories."""
        assert self._watch is not None
        for change in self._watch.changes():
            one = self._watched.get(change.watch)
            if change.watch < 0:
                self._look_at_all()
            elif one is not None and change.here:
                self._hear(one, change.name)

    def _look_at_all(self) -> None:
        for one in self._attempts.values():
            self._look(one)
        if any(one.watch is None for one in self._attempts.values()):
            self._reactor.call_once(_UNWATCHED, self._look_at_all)

    def _look(self, one: _Attempt) -> None:
        with contextlib.suppress(OSError):
            for entry in Path(one.directory).iterdir():
                self._hear(one, entry.name)

    def _hear(self, one: _Attempt, name: str) -> None:
        if (pid := attempt_files.dumped_by(name)) is not None:
            left = attempt_files.dump_time(name)
            if left is not None and one.raised_at < left and self._clock.wall() - left < _GIVES_UP:
                self._lacks(one, pid)
        elif (lack := attempt_files.lack(name)) is not None and name not in one.answered:
            self._lacks(one, lack[0])
            one.lack, one.need = name, lack[1]
        elif name.startswith(attempt_files.LIMIT) and one.before:
            self._confirmed(one, name.removeprefix(attempt_files.LIMIT))

    def _lacks(self, one: _Attempt, pid: int) -> None:
        """An allocation of this process does not fit."""
        now = self._clock.now()
        if now - one.since > _GIVES_UP:
            one.since, one.steps = now, 0
        one.pid, one.lack, one.need = pid, "", 0
        self._work.changed = True

    def _confirmed(self, one: _Attempt, digits: str) -> None:
        """A worker has said how much of a raise it needed, or what it could give back."""
        job = self._work.state.get(one.job)
        if not digits.isdecimal() or job is None or job.lease is None:
            return
        noted = attempt_files.read_limit(one.directory, int(digits))
        if noted is None or noted.raises < len(one.used):
            return  # It has not seen the last raise yet.
        lent = self._nested_leases.lent(job)
        least, most = sorted((one.before, one.asked))
        ceiling = min(max(noted.limit + lent, least), most)
        ceiling = max(ceiling, self._fenced(one, job.lease))
        one.before = one.asked = 0
        if not one.pid:
            one.since = 0.0
        if ceiling < job.lease.ceiling:
            self._work.happened(LeaseResized(job.id, job.attempt, ceiling), SettleNested(job.id))

    def _raise(self, job: Job, ceiling: int) -> None:
        assert job.lease is not None
        one = self._attempts[job.attempt_id]
        pid = one.pid
        if one.need:
            # TensorFlow's pool is not told of it, and has nothing of it to give back.
            pid = 0
            one.asked = ceiling if one.before else 0
        else:
            one.raised_at = self._clock.wall()
            one.before, one.asked = one.before or job.lease.ceiling, ceiling
        left = ceiling - self._nested_leases.lent(job)
        self._work.decided(
            job,
            LeaseResized(job.id, job.attempt, ceiling),
            SettleNested(job.spec.within),
            SettleNested(job.id),
            RaiseLimit(job.attempt_id, pid, left),
        )

    def _ask(self, job: Job, lease: Lease, one: _Attempt) -> growth.Ask:
        outer = job.spec.within if self._work.state.get(job.spec.within or -1) else None
        return growth.Ask(
            job=job.id,
            where=lease.device if outer is None else f"the lease of #{outer}",
            ceiling=lease.ceiling,
            most=lease.most,
            since=one.since,
            service=job.spec.service,
            steps=one.steps,
            last=not one.need and len(self._fifos(one, one.pid)) < 2,
            need=one.need,
        )

    def _fenced(self, one: _Attempt, lease: Lease) -> int:
        """The least ceiling under which the processes of an attempt may hold what they do, in
        TensorFlow's pool or not; as far as a fence knows it."""
        held = sum(
            holder.held
            for holder in fence_file.holders(one.directory)
            if process_tree.is_alive(holder.pid, holder.start)
        )
        return min(held - (lease.charge - lease.ceiling), lease.ceiling)

    def _fifos(self, one: _Attempt, pid: int) -> list[str]:
        found = attempt_files.raise_fifos(one.directory, pid)
        return [fifo for fifo in found if fifo not in one.used]

    def _job(self, name: str, one: _Attempt) -> Job | None:
        """The job of an attempt that runs and is to go on."""
        job = self._work.state.get(one.job)
        if job is None or job.attempt_id != name or not isinstance(job.state, Running):
            return None
        return None if job.state.stopping else job


def _has_ended(one: _Attempt) -> bool:
    """Whether the fence that has asked does not wait any more, or its process was killed."""
    if not one.lack:
        return False
    waits = os.path.exists(os.path.join(one.directory, one.lack))
    return not waits or process_tree.start_time(one.pid) is None


def _is_elastic(job: Job) -> bool:
    return isinstance(job.holds, Running) and job.holds.lease.elastic
