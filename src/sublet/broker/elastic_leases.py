"""Leases that grow while their programs run, and the shares that their processes have of them.

    TensorFlow's allocator ──dump-P_*──▶ a share of what is free in the lease ──────────▶ FIFO
              nothing is free ──▶ policy.growth ──▶ LeaseResized ──commit──▶ a share ──▶ FIFO
    fence ──lack-P-N-B──▶ policy.growth ──▶ LeaseResized ──commit──▶ its bound
    worker on a GPU ──ahead-P-B-T──▶ the same as for a dump, but only of what is free
    worker ──shares──▶ what was not needed goes back to the device

An allocation that does not fit leaves a file in the attempt's directory and waits for ten seconds;
this hears of the file. What the lease has left goes to that process at once; the other processes of
the program hear of the file, too, and give back what they have not taken. If that is not enough,
and the lease is elastic, it is raised if there is room. A raise is committed before the worker
hears of it. A lease shrinks only to what its processes have as shares, and a share only when its
process has lowered its limit. Everything a later broker needs is in the ledger and in the attempt's
directory.
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
from sublet.formats import attempt_files, fence_file, shares
from sublet.formats.inotify import DirectoryWatch
from sublet.formats.usage_file import read_usage, tree_peak
from sublet.keeper import process_tree
from sublet.policy import growth
from sublet.policy.trimming import Sample, thinned, trimmed
from sublet.policy.wait_queue import WaitQueue
from sublet.reactor import Reactor
from sublet.units import MiB, format_bytes
from sublet.wire import messages

_GIVES_UP = 12.0
"""Seconds after which an allocation that waited has succeeded or failed, with some to spare."""
_UNWATCHED = 0.25
"""Seconds between looks at the directories where the system has no more watchers to give."""
_LOCKED = 0.02
"""Seconds until the shares are looked at again that somebody else was changing."""
_STOPPED = 1.5
"""Seconds after which a process that waits, and has had the lock of the shares all that time, is
taken to stand still: its allocation holds Python's lock, which the thread that changes the shares
needs to go on."""
_HURRY = 3.0
"""Seconds after which a process that waits gets its share of all that its lease has free."""
_GIVE_BACK = 1.0
"""Seconds in which other processes of a program give back what they have not taken."""
_SIBLINGS = 0.25
"""Seconds between looks at processes whose end would free memory for one that waits."""
_MOST_NAMED = 8


@dataclass
class _Wait:
    """The allocations of one process that do not fit."""

    since: float
    """When it began to wait, on the broker's clock."""
    waits: bool = True
    begins: bool = False
    """Whether it waits for a share to begin with."""
    lack: str = ""
    """The file by which its fence asks; empty if TensorFlow's pool lacks memory."""
    need: int = 0
    """The bytes that its fence lacks; nobody knows how many the pool does."""
    ahead: int = 0
    """The bytes that it asks for before it needs them, if no allocation waits."""
    steps: int = 0
    granted: int = 0
    """The share that it was given last."""
    raised_at: float = 0.0
    """When the last raise was sent, by the wall clock: older dumps are answered."""


@dataclass
class _Attempt:
    """What is known of one attempt that runs."""

    job: int
    directory: str
    elastic: bool
    watch: int | None = None
    asks: int = 0
    """The process for which more was asked of the device last."""
    waits: dict[int, _Wait] = field(default_factory=dict)
    """The processes in which an allocation waits, or has waited, by pid."""
    locked_since: float = 0.0
    locked_at: float = 0.0
    """When the shares were first and last found locked, of looks of which none found them open."""
    used: set[str] = field(default_factory=set)
    """The FIFOs that were written to."""
    answered: set[str] = field(default_factory=set)
    """The files of fences that were answered."""
    least: int = 0
    """What stays of the ceiling if the processes give all of their raises back."""
    trim: int = 0
    """The ceiling that a settled program was asked for; 0 if none was."""
    samples: list[Sample] = field(default_factory=list)

    @property
    def waiting(self) -> list[int]:
        """The processes in which an allocation waits, longest first."""
        pids = [pid for pid, wait in self.waits.items() if wait.waits]
        return sorted(pids, key=lambda pid: (self.waits[pid].since, pid))


class ElasticLeases:
    """Hears of programs that need more memory, and moves their ceilings and shares."""

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
        return any(
            wait.waits and not wait.ahead
            for one in self._attempts.values()
            for wait in one.waits.values()
        )

    def adopt(self) -> None:
        """Go on with what an earlier broker has left: its raises may not have reached anybody."""
        self.note([job.id for job in self._work.state.holding()])
        for one in self._attempts.values():
            self._nested_leases.settle(one.job)

    def note(self, changed: list[int]) -> None:
        """These jobs have changed: watch those that run, and no others."""
        for number in changed:
            job = self._work.state.get(number)
            if (
                job is not None
                and isinstance(job.holds, Running)
                and job.attempt_id not in self._attempts
            ):
                self._add(job)
        live = {one.job: name for name, one in self._attempts.items()}
        for number in changed:
            job, name = self._work.state.get(number), live.get(number)
            if name is not None and (job is None or job.attempt_id != name or job.lease is None):
                self._remove(name)

    def plan(self, queue: WaitQueue) -> None:
        """Give more to those who ask: of their own leases, and as far as the device has room."""
        asks = []
        self._lacking.clear()
        for name, one in self._attempts.items():
            for pid, wait in one.waits.items():
                late = self._clock.now() - wait.since > _GIVES_UP
                wait.waits = wait.waits and not late and not _has_ended(one, pid, wait)
            job = self._job(name, one)
            if not one.waiting or job is None or job.lease is None:
                continue
            lacking = self._hand_out(job, job.lease, one)
            if lacking and job.lease.elastic:
                asks.append(self._ask(job, job.lease, one, lacking[0]))
            elif lacking and self._clock.now() - one.waits[lacking[0]].since > _GIVE_BACK:
                self._tell(job.id, _held_by_processes(job.lease, one.directory))
        if not asks:
            return
        plan = growth.plan(self._usage.capacities(), queue, asks)
        for grant in plan.raises:
            self._raise(self._work.state[grant.job], grant.ceiling)
        for preemption in plan.preempt:
            self._control.stop(self._work.state[preemption.job], "preempted")
        self._control.end_nurseries(plan.nurseries)
        for number, why in plan.waits.items():
            self._tell(number, why)

    def send(self, effect: RaiseLimit) -> None:
        """The raise is on disk: let the process that waits have it."""
        one = self._attempts.get(effect.attempt_id)
        job = None if one is None else self._job(effect.attempt_id, one)
        if one is None or job is None or job.lease is None:
            return
        wait = one.waits.get(effect.pid)
        if wait is not None and wait.need:
            # TensorFlow's pool is not told of it, and has nothing of it to give back.
            wait.waits, wait.steps = False, wait.steps + 1
            one.answered.add(wait.lack)
            one.least += effect.more
        else:
            self._hand_out(job, job.lease, one)

    def trim(self, waits: bool) -> None:
        """Ask settled programs for the room that they do not need, if somebody waits for it."""
        for name, one in self._attempts.items():
            if not one.elastic:
                continue
            self._follow_shares(one)
            job = self._job(name, one)
            # What is lent now and then looks like room that is never needed. A notebook that stands
            # still has not settled: its owner reads.
            if job is None or job.lease is None or job.spec.in_process is not None:
                continue
            if one.waiting or one.trim or self._nested_leases.has_lent(job):
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
            needed = self._usage.needed(job) if waits else 0
            kept = trimmed(one.samples, job.lease.ceiling, needed) if waits else None
            if kept is not None:
                kept = max(kept, self._fenced(one, job.lease))
                if kept >= job.lease.ceiling:
                    continue
                one.trim = kept // MiB * MiB
                with contextlib.suppress(OSError):
                    attempt_files.write_ceiling(one.directory, one.trim)

    @property
    def watches(self) -> bool:
        """Whether there are leases that could be trimmed."""
        return any(one.elastic for one in self._attempts.values())

    def _add(self, job: Job) -> None:
        assert job.lease is not None
        one = _Attempt(job.id, str(self._runs / job.attempt_id), job.lease.elastic)
        # Nobody can tell any more what an earlier broker had added for a fence.
        fenced = fence_file.exists(one.directory)
        floor = job.lease.ceiling if fenced else job.lease.floor or job.lease.ceiling
        one.least = min(floor, job.lease.ceiling)
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
            answered = one.waits[pid].raised_at if pid in one.waits else 0.0
            if left is not None and answered < left and self._clock.wall() - left < _GIVES_UP:
                self._lacks(one, pid)
        elif (lack := attempt_files.lack(name)) is not None:
            if one.elastic and name not in one.answered:
                self._lacks(one, lack[0])
                one.waits[lack[0]].lack, one.waits[lack[0]].need = name, lack[1]
        elif (ahead := attempt_files.ahead(name)) is not None:
            self._wants_ahead(one, *ahead)
        elif name == shares.FILE:
            self._follow_shares(one)
            self._work.changed |= bool(one.waiting)
        elif name.startswith(attempt_files.RAISE):
            self._work.changed |= bool(one.waiting)

    def _lacks(self, one: _Attempt, pid: int) -> None:
        """An allocation of this process does not fit."""
        now = self._clock.now()
        wait = one.waits.setdefault(pid, _Wait(now))
        if now - wait.since > _GIVES_UP:
            wait.since, wait.steps = now, 0
        wait.waits, wait.lack, wait.need, wait.ahead = True, "", 0, 0
        self._work.changed = True

    def _wants_ahead(self, one: _Attempt, pid: int, amount: int, at: float) -> None:
        """A process on a GPU would have more before it needs it. Where earlier runs have shown what
        its program needs, it has that."""
        job = self._work.state.get(one.job)
        if not one.elastic or not amount or job is None or job.lease is None:
            return
        wait = one.waits.get(pid)
        if wait is not None and (wait.raised_at >= at or (wait.waits and not wait.ahead)):
            return  # It was answered, or an allocation waits, which gets more than this.
        if not self._usage.is_enough(job):
            self._lacks(one, pid)
            one.waits[pid].ahead = amount

    def _hand_out(self, job: Job, lease: Lease, one: _Attempt) -> list[int]:
        """Give those who wait what the lease has left. Returns the processes that have got nothing
        and could be reached."""
        lacking: list[int] = []
        now = self._clock.now()
        if now - one.locked_at > _STOPPED / 2:
            one.locked_since = now  # Nobody has looked for a while.
        stopped = one.waiting if now - one.locked_since > _STOPPED else ()
        try:
            with shares.locked(one.directory, stopped=stopped) as table:
                one.locked_at = now if table.borrowed else 0.0
                for pid in one.waiting:
                    if one.waits[pid].need:
                        lacking.append(pid)
                        continue
                    share, fifos = table.get(pid), self._fifos(one, pid)
                    free = lease.ceiling - self._nested_leases.lent(job) - table.given
                    if share is None or share.fixed:
                        continue
                    if not fifos:
                        # One that begins takes what is free itself; others cannot be reached yet.
                        lacking += [pid] if not share.limit and free < shares.LEAST else []
                        continue
                    wait, alone = one.waits[pid], not table.others(pid)
                    most = free if alone else growth.slice_of(share.limit, free, wait.steps)
                    if len(fifos) < 2 or self._clock.now() - wait.since > _HURRY:
                        most = max(most, free // len(one.waiting))
                    if (more := most // MiB * MiB) <= 0:
                        lacking.append(pid)
                        continue
                    table.put(share._replace(limit=share.limit + more))
                    wait.raised_at = self._clock.wall()  # It may need more as soon as it has it.
                    one.used.add(fifos[0])
                    # If nobody reads it any more, the process finds its share in the record.
                    attempt_files.send_limit(fifos[0], share.limit + more)
                    wait.waits, wait.steps = False, wait.steps + 1
                    wait.granted = share.limit + more
        except OSError:
            one.locked_at = now
            self._reactor.call_once(_LOCKED, self._touch)
        if lacking:
            self._reactor.call_once(_SIBLINGS, self._touch)
        return lacking

    def _follow_shares(self, one: _Attempt) -> None:
        """The processes of a program have changed their shares, or ended: what they have not kept
        of what was added to the lease, or what they were asked for, goes back to the device."""
        job = self._work.state.get(one.job)
        if job is None or job.lease is None:
            return
        lease, lent = job.lease, self._nested_leases.lent(job)
        least = max(one.trim or min(one.least, lease.ceiling), self._fenced(one, lease))
        try:
            with shares.locked(one.directory) as table:
                self._usage.processes[job.attempt_id] = len(table)
                for pid in table.claims:
                    self._lacks(one, pid)
                    one.waits[pid].begins = True
                for pid, wait in one.waits.items():
                    share = table.get(pid)
                    if wait.begins and (share is None or share.limit):
                        wait.begins = wait.waits = False
                    if not wait.waits and (share is None or share.limit < wait.granted):
                        wait.since = 0.0  # It had enough: the next time begins anew.
                # What processes have used that have ended is still what the program needed.
                needed = -(-tree_peak(read_usage(one.directory)) // MiB) * MiB
                ceiling = max(max(table.given, needed) + lent, least)
                settled = one.elastic and not one.waiting and len(table) > 0
                if not settled or ceiling >= lease.ceiling:
                    return
                # Under the lock: a process that starts now must not take what goes back.
                attempt_files.write_ceiling(one.directory, max(MiB, ceiling - lent))
        except OSError:
            self._reactor.call_once(_LOCKED, self._look_at_all)
            return
        one.trim = 0
        self._work.happened(LeaseResized(job.id, job.attempt, ceiling), SettleNested(job.id))

    def _touch(self) -> None:
        self._work.changed = True

    def _tell(self, number: int, why: str) -> None:
        """Say what the allocation of a job waits for."""
        self._lacking[number] = why
        self._clients.send_if_new(number, messages.LacksMemory(why))

    def _raise(self, job: Job, ceiling: int) -> None:
        assert job.lease is not None
        one = self._attempts[job.attempt_id]
        self._work.decided(
            job,
            LeaseResized(job.id, job.attempt, ceiling),
            SettleNested(job.spec.within),
            SettleNested(job.id),
            RaiseLimit(job.attempt_id, one.asks, ceiling - job.lease.ceiling),
        )

    def _ask(self, job: Job, lease: Lease, one: _Attempt, pid: int) -> growth.Ask:
        one.asks = pid
        wait = one.waits[pid]
        outer = job.spec.within if self._work.state.get(job.spec.within or -1) else None
        return growth.Ask(
            job=job.id,
            where=lease.device if outer is None else f"the lease of #{outer}",
            ceiling=lease.ceiling,
            most=lease.most,
            since=wait.since,
            service=job.spec.service,
            steps=wait.steps,
            last=not wait.need and len(self._fifos(one, pid)) == 1,
            need=wait.need,
            ahead=wait.ahead,
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


def _has_ended(one: _Attempt, pid: int, wait: _Wait) -> bool:
    """Whether the fence that has asked does not wait any more, or its process was killed."""
    if not wait.lack:
        return False
    waits = os.path.exists(os.path.join(one.directory, wait.lack))
    return not waits or process_tree.start_time(pid) is None


def _held_by_processes(lease: Lease, directory: str) -> str:
    """Such as "needs more than its lease of 1 GiB, which its processes hold: 12 700 MiB"."""
    held = sorted(shares.read(directory), key=lambda share: -share.limit)
    named = ", ".join(f"{share.pid} {format_bytes(share.limit)}" for share in held[:_MOST_NAMED])
    return f"needs more than its lease of {format_bytes(lease.ceiling)}; its processes hold {named}"
