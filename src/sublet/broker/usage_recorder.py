"""Records the memory of the devices and what happens to leases, while anything does.

One sample a second while somebody holds a lease, or asks for the history; one more when the last
lease has ended. Nothing is recorded, and the broker is not woken, while nothing happens. Kept in
memory only: what must outlive a broker (how jobs ended, their peaks) is in the ledger.
"""

from collections.abc import Iterable

from sublet.broker.device_usage import DeviceUsage, used
from sublet.broker.unit_of_work import UnitOfWork
from sublet.broker.usage_history import UsageHistory
from sublet.clock import Clock
from sublet.domain.device import DeviceFacts
from sublet.domain.job import CANCELLED, Finished, Job, Outcome
from sublet.domain.lease import Lease
from sublet.home import Home
from sublet.policy.retry import ending
from sublet.reactor import Reactor
from sublet.wire import messages
from sublet.wire.rows import HoldingRow, LeaseEventKind, LeaseEventRow, UsageRow

_PERIOD = 1.0
"""Seconds between samples."""
_SOON = 0.05
"""Seconds in which what happens at once gets into one sample."""


class UsageRecorder:
    """Fills the history, and answers from it."""

    def __init__(
        self, work: UnitOfWork, usage: DeviceUsage, clock: Clock, reactor: Reactor, home: Home
    ) -> None:
        self._work = work
        self._state = work.state
        self._usage = usage
        self._clock = clock
        self._reactor = reactor
        self._home = home
        self.history = UsageHistory()
        self._began = clock.wall()
        self._held: dict[int, tuple[int, Lease]] = {}
        """The attempts that hold leases, and the leases as they were last seen, by job."""

    def adopt(self) -> None:
        """Go on with the leases that an earlier broker has granted."""
        for job in self._state.holding():
            assert job.lease is not None
            self._held[job.id] = job.attempt, job.lease
        self._look_soon()

    def note(self, changed: Iterable[int]) -> None:
        """Note which leases these changed jobs have got, lost or resized."""
        for number in changed:
            job = self._state.get(number)
            if job is not None and (job.lease is not None or number in self._held):
                self._compare(job)
                self._look_soon()

    def finished(self, job: Job) -> None:
        """Record how a job that had a lease has finished."""
        held = self._held.pop(job.id, None)
        if held is not None and isinstance(job.state, Finished):
            self._ended(job, *held, job.state.outcome)
            self._look_soon()

    def answer(self, since: float) -> messages.UsageHistory:
        """What was recorded after a moment, up to now."""
        self._record()
        devices = self.history.devices(since)
        shown = {one.job for rows in devices.values() for row in rows for one in row.holdings}
        return messages.UsageHistory(
            self._began,
            self._clock.wall(),
            devices,
            self.history.events(since),
            self.history.names(shown),
        )

    def _look_soon(self) -> None:
        self._reactor.call_once(_SOON, self._look)

    def _look(self) -> None:
        self._record()
        if self._held:
            self._reactor.call_once(_PERIOD, self._look)

    def _record(self) -> None:
        facts, at = self._usage.facts(), self._clock.wall()
        for capacity in self._usage.capacities():
            name = capacity.device.id
            if capacity.within is None and name in facts:
                jobs = [job for job in self._state.holding() if job.lease_on(name) is not None]
                row = UsageRow(
                    at, capacity.strangers, capacity.standing, self._holdings(jobs, facts[name])
                )
                self.history.record(name, row, {job.id: job.name for job in jobs})

    def _holdings(self, jobs: list[Job], facts: DeviceFacts) -> tuple[HoldingRow, ...]:
        """What these jobs hold of a device. One within the lease of another counts there."""
        here = {job.id: job for job in jobs}
        held = dict.fromkeys(here, 0)
        charges: dict[int, int] = {}
        for job in jobs:
            outer = job
            while outer.spec.within in here:
                outer = here[outer.spec.within]
            held[outer.id] += used(job, facts, self._usage.samples, self._home.runs)
            lease = outer.lease_on(facts.device.id)
            assert lease is not None
            charges[outer.id] = lease.charge
        return tuple(HoldingRow(number, charges[number], held[number]) for number in charges)

    def _compare(self, job: Job) -> None:
        """Note what has become of the lease of a job that has not finished."""
        held, lease = self._held.get(job.id), job.lease
        if held is not None and (lease is None or held[0] != job.attempt):
            del self._held[job.id]
            last = job.past[-1] if job.past else None
            outcome = last.outcome if last is not None and last.attempt == held[0] else None
            self._ended(job, *held, outcome)
            held = None
        if lease is None:
            return
        if held is None:
            self._note(job, job.attempt, lease, "granted")
        elif held[1].ceiling != lease.ceiling:
            grown = lease.ceiling > held[1].ceiling
            self._note(job, job.attempt, lease, "grown" if grown else "shrunk")
        self._held[job.id] = job.attempt, lease

    def _ended(self, job: Job, attempt: int, lease: Lease, outcome: Outcome | None) -> None:
        """Without an outcome the attempt is over before its program ran."""
        self._note(job, attempt, lease, *_kind(outcome))

    def _note(
        self, job: Job, attempt: int, lease: Lease, kind: LeaseEventKind, text: str = ""
    ) -> None:
        at = self._clock.wall()
        for one in lease.all:
            event = LeaseEventRow(at, one.device, job.id, job.name, attempt, kind, one.charge, text)
            self.history.note(event)


def _kind(outcome: Outcome | None) -> tuple[LeaseEventKind, str]:
    if outcome is None:
        return "ended", "not started"
    text = ending(outcome)
    if outcome.cause in ("lease exceeded", "device full"):
        return "out of memory", text
    if outcome.cause == "preempted":
        return "preempted", text
    if outcome.cause == CANCELLED or outcome.by_user:
        return "cancelled", text
    return ("ended" if outcome.cause == "exited" and outcome.code == 0 else "failed"), text
