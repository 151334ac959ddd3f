"""The broker's loop: hear, decide, write down, act.

    hub.turn ──▶ callbacks ──▶ state.apply ──▶ plan ──▶ state.apply ──▶ ledger.commit ──▶ effects

Callbacks come from clients (`requests`) and from workers (`attempts`). Effects of a decision
(accepting, granting, starting) wait until it is on disk: "accepted" means committed, and no worker
is asked for whose lease a later broker would not find.
"""

import contextlib
import sqlite3
from collections.abc import Callable

import msgspec

from sublet.backends.local.in_process_leases import InProcessLeases
from sublet.backends.local.launcher import Launcher
from sublet.broker import device_usage, takeover
from sublet.broker.attempts import Attempts
from sublet.broker.connections import ClientConnection
from sublet.broker.dependencies import Dependencies
from sublet.broker.device_usage import Strangers, UsageSample
from sublet.broker.events import Granted, LeaseTrimmed, StopAsked, Withdrawn
from sublet.broker.job_clients import JobClients
from sublet.broker.ledger import Ledger
from sublet.broker.nested_leases import NestedLeases
from sublet.broker.opportunistic import OpportunisticJobs
from sublet.broker.queue import Queue
from sublet.broker.size_estimates import SizeEstimator
from sublet.broker.snapshots import Snapshots
from sublet.broker.starts import Starts
from sublet.broker.subscriptions import Subscriptions
from sublet.broker.trimmer import Trimmer
from sublet.broker.unit_of_work import Undo, UnitOfWork
from sublet.clock import Clock
from sublet.devices import Probe
from sublet.domain.device import Device
from sublet.domain.job import Cause, Finished, Job, Outcome
from sublet.domain.lease import Lease
from sublet.errors import BadRequest, WorldError
from sublet.home import Home
from sublet.policy import admission
from sublet.policy.admission import Grant, Plan
from sublet.policy.capacity import Capacity
from sublet.policy.wait_reasons import Reasons
from sublet.reactor import Reactor
from sublet.wire import messages

_DOWN = "`sublet down --stop`"
_RETRY_WRITING = 1.0
_CHECKPOINT = 1.0
_LOOK_AGAIN = 2.0
"""Seconds between looks at strangers' memory while somebody waits."""


class Broker:
    """All of it, in one thread."""

    DOWN_CAME_FIRST = f"{_DOWN} came first"

    def __init__(
        self, reactor: Reactor, home: Home, ledger: Ledger, probe: Probe, clock: Clock
    ) -> None:
        self.reactor = reactor
        self.home = home
        self.probe = probe
        self.clock = clock
        self.work = UnitOfWork(ledger)
        self.state = self.work.state
        self.clients = JobClients()
        self.subscriptions = Subscriptions()
        self.snapshots = Snapshots(self)
        self.submitters: dict[int, ClientConnection] = {}
        """Who is to hear that the jobs up to this one were accepted."""
        self.attempts = Attempts(self)
        self.launcher = Launcher(reactor, home.runs, home.log, self.attempts)
        self.in_process_leases = InProcessLeases(reactor, home.runs, self.attempts)
        self.devices: dict[str, Device] = {device.id: device for device in probe.devices()}
        self.opportunistic = OpportunisticJobs(self.launcher, self.devices)
        self.estimator = SizeEstimator(ledger, self.devices)
        self.dependencies = Dependencies(self.work)
        self.starts = Starts(self)
        self.queue = Queue(
            self.state, self.estimator, self.dependencies, self.starts.unready, clock.now
        )
        self.strangers = Strangers()
        self.nested_leases = NestedLeases(self.state, home.runs)
        self.began = clock.wall()
        self.ending = False
        self.closing = False
        self.next_id = ledger.last_id() + 1
        self.samples: dict[str, UsageSample] = {}
        self.interrupted: set[str] = set()
        """Attempts that their users have told to end."""
        self.ends: dict[int, float] = {}
        """When the jobs that run are expected to end, in monotonic time."""
        self._trimmer = Trimmer(home.runs)
        self._due: set[Callable[[], None]] = set()
        takeover.take_over(self)

    def run(self) -> None:
        """Until somebody says `down`."""
        self._settle()
        while not self.ending:
            self.reactor.run_once()
            self._settle()
        self.close()

    def close(self) -> None:
        """End the nurseries and the ledger; workers and keepers go on."""
        self.launcher.close()
        self.in_process_leases.close()
        self.work.ledger.close()

    def down(self, connection: ClientConnection, stop: bool) -> None:
        """End; programs go on unless they are to be stopped, and the queue stays in the ledger.

        Lodgers go on in any case: they are somebody's notebook.
        """
        snapshot = self.snapshots.snapshot()
        connection.reply(messages.Downed(snapshot.leases, snapshot.waiting, snapshot.waits))
        self.closing = True
        if not stop:
            self.clients.broadcast(messages.Leaving())
            self.ending = True
            return
        for job in self.state.jobs():
            if job.holds is not None:
                if job.spec.in_process is None:
                    self.stop(job, _DOWN)
            elif job.spec.client is not None:
                self.withdraw(job, self.DOWN_CAME_FIRST)
        self._end_when_idle()

    def _end_when_idle(self) -> None:
        if any(job.spec.in_process is None for job in self.state.holding()):
            self.reactor.call_later(0.05, self._end_when_idle)
        else:
            self.ending = True

    # The turn.

    def _settle(self) -> None:
        """After each turn: decide, write down, act; and again, as long as acting brings news."""
        while self.work.news:
            # What was measured is written first: the next of the same program is sized by it.
            if self.work.changed and not self.work.unlearned:
                self.work.changed = False
                due = self.state.waits or self.queue.wait_queue or self.queue.behind
                if due and not self.closing:
                    self._follow(self.plan())
            changed = self.work.unwritten()
            undone, error = self.work.write()
            if error is not None:
                self._refuse(undone, error)
                self.reactor.call_later(_RETRY_WRITING, self._look_again)
                break
            self.subscriptions.publish(changed, self.snapshots.row)
            self.opportunistic.hold(self.state.holding(), self.samples)
        if self.queue.behind and not self.closing:
            self._once(0.0, self._revise)
        if self.state.waits:
            self._once(_LOOK_AGAIN, self._look_again)
        if self._trimmer.watches(self.state.holding()):
            self._once(_LOOK_AGAIN, self._trim)
        if self.work.ledger.in_journal:
            self._once(_CHECKPOINT, self._checkpoint)

    def _once(self, seconds: float, act: Callable[[], None]) -> None:
        """Later, unless it is to be done by then anyway."""

        def due() -> None:
            self._due.discard(act)
            act()

        if act not in self._due:
            self._due.add(act)
            self.reactor.call_later(seconds, due)

    def _revise(self) -> None:
        """Go on with what the last plan has left for later; clients are heard in between."""
        self.work.changed = True

    def _look_again(self) -> None:
        """Strangers come and go without telling us."""
        self.work.changed = True

    def _trim(self) -> None:
        """The room that settled programs do not need goes to those that wait."""
        # What is lent now and then looks like room that is never needed.
        whole = [job for job in self.state.holding() if not self.nested_leases.has_lent(job)]
        for job, ceiling in self._trimmer.look(whole, self.clock.now()):
            self.work.happened(LeaseTrimmed(job.id, job.attempt, ceiling))

    def _checkpoint(self) -> None:
        """What was accepted stays in the ledger's journal for a moment only; so do environments of
        jobs that have ended."""
        with contextlib.suppress(sqlite3.Error):  # The disk is full; tried again after a turn.
            self.work.ledger.checkpoint()

    def _refuse(self, undone: list[Undo], error: sqlite3.Error) -> None:
        """Say to those whose jobs could not be written down that they were not accepted."""
        refusal = WorldError(
            f"The ledger cannot be written: {error}.",
            f"Free some space for {self.home.path}; nothing was started.",
        )
        for before, after in undone:
            if before is None:
                connection = self.clients.part(after.id) or self.submitters.pop(after.id, None)
                if connection is not None:
                    connection.job = None
                    connection.refuse(refusal)

    # Deciding.

    def capacities(self, *outer: int) -> tuple[Capacity, ...]:
        """How full the devices are now, and the leases with others within. `outer` are jobs whose
        leases are wanted though nobody is within yet."""
        nurseries = [n for n in self.launcher.nurseries.all() if n.state != "off"]
        standing = sum(nursery.holds for nursery in nurseries)
        return device_usage.capacities(
            self.probe.facts(),
            self.state.holding(),
            self.samples,
            standing,
            self.strangers,
            self.clock.now(),
            self.ends,
            self.nested_leases.lenders(*outer),
        )

    def plan(self) -> Plan:
        """Who gets a lease now."""
        capacities = self.capacities()
        for number in self.work.take_touched():
            self.queue.touch(number)
        for job in self.queue.update(capacities):
            self.withdraw(job, self.dependencies.hopeless(job), "dependency")
        for job, why in list(
            self.nested_leases.cramped(capacities, self.queue.wait_queue, self.clock.now())
        ):
            self.queue.wait_queue.take(job.id)
            self.withdraw(job, why)
        return admission.plan(capacities, self.queue.wait_queue, self.clock.now())

    def plan_again(self, number: int) -> None:
        """Something about this job has changed of which the books know nothing."""
        self.queue.touch(number)
        self.work.changed = True

    def plan_after(self, delay: float, number: int) -> None:
        """Plan again when a job that was put off may start."""
        if delay:
            self.reactor.call_later(delay, lambda: self.plan_again(number))

    def _follow(self, plan: Plan) -> None:
        now = self.clock.now()
        for grant in plan.grants:
            self._grant(self.state[grant.job], grant)
        for preemption in plan.preempt:
            self.stop(self.state[preemption.job], "preempted")
        self.queue.wait_queue.follow(plan, now)
        # Only those who listen are told: the others' reasons are made when somebody asks.
        present = [job for job in self.clients.jobs() if job in self.queue.wait_queue]
        if not present:
            return
        reasons = Reasons(self.capacities(), self.queue.wait_queue, now, present)
        for number in present:
            self.clients.send_if_new(number, messages.Waits(reasons.why(number, estimate=False)))

    def _grant(self, job: Job, grant: Grant) -> None:
        outer = self.state[job.spec.within].lease if job.spec.within is not None else None
        lease = Lease(
            device=grant.device if outer is None else outer.device,
            ceiling=grant.size.ceiling,
            charge=grant.charge,
            basis=grant.size.basis,
            cpus=self._processors(job),
            roomy=grant.size.roomy,
        )
        self.expect(job, self.clock.now())
        self.work.decided(
            job,
            Granted(job.id, self.clock.wall(), self.clock.now(), lease),
            lambda: self.nested_leases.settle(job.spec.within),
            lambda: self.clients.send(job.id, messages.Granted(lease, job.attempt)),
            lambda: self.starts.start(job.id),
        )

    def _processors(self, job: Job) -> tuple[int, ...]:
        """The least used processors, as many as the job asked for; empty if it did not ask."""
        if job.spec.cpus is None:
            return ()
        used = [cpu for other in self.state.holding() if other.lease for cpu in other.lease.cpus]
        mine = sorted(job.spec.surroundings.affinity, key=lambda cpu: (used.count(cpu), cpu))
        return tuple(sorted(mine[: job.spec.cpus]))

    def expect(self, job: Job, since: float) -> None:
        """It was granted its lease then: note when it is likely to end, if anybody can tell."""
        expected = self.estimator.expected(job)
        if expected is not None:
            self.ends[job.id] = since + expected

    def suggest(self, job: Job, lease: Lease, outcome: Outcome) -> int | None:
        """After an out-of-memory: a larger ceiling that the device could give."""
        if outcome.cause != "lease exceeded":
            return None
        return self.estimator.suggest(job, lease, outcome, self.capacities())

    # What is done to one job.

    def job(self, number: int) -> Job:
        """This job, live or finished."""
        job = self.work.find(number)
        if job is None:
            raise BadRequest(f"There is no job {number}.", "`sublet ps` shows which there are.")
        return job

    def stop(self, job: Job, why: str) -> None:
        """Ask a job's tree to end; its lease ends when the exit is seen."""
        self.work.happened(StopAsked(job.id, why))
        self.launcher.stop(job.attempt_id, why, job.spec.grace)

    def resume(self, job: Job) -> None:
        """Let a paused tree go on; what it did before says nothing of what it does now."""
        if (sample := self.samples.get(job.attempt_id)) is not None:
            self.samples[job.attempt_id] = msgspec.structs.replace(sample, busy=None)
        self.launcher.pause(job.attempt_id, False)

    def withdraw(self, job: Job, why: str, cause: Cause = "stopped") -> None:
        """A job that holds nothing is not wanted any more."""
        outcome = Outcome(cause, 143, message=why)
        self.close_job(self.work.happened(Withdrawn(job.id, self.clock.wall(), outcome)))

    def end_inner(self, outer: Job) -> None:
        """What came out of a lease goes with it."""
        why = f"#{outer.id}, out of whose lease its own came, has ended"
        for job in self.state.within(outer.id):
            if job.holds is not None:
                self.stop(job, why)
            else:
                self.withdraw(job, why)

    def close_job(self, job: Job) -> None:
        """The job has finished: let its streams go, then say so."""
        self.snapshots.note_end(job)
        self.nested_leases.settle(job.spec.within)
        connection = self.clients.part(job.id)
        if connection is not None:
            self.send_ended(connection, job)

    def send_ended(self, connection: ClientConnection, job: Job) -> None:
        """Say how a finished job has ended."""
        assert isinstance(job.state, Finished)
        outcome, lease = job.state.outcome, job.state.lease
        suggest = self.suggest(job, lease, outcome) if lease is not None else None
        connection.reply(
            messages.Ended(job.id, outcome, lease, job.state.how, job.attempt, suggest)
        )
