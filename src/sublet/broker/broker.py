"""The broker's loop: hear, decide, write down, act.

    hub.turn ──▶ callbacks ──▶ state.apply ──▶ plan ──▶ state.apply ──▶ ledger.commit ──▶ effects

Effects of a decision (accepting, granting, starting) wait until it is on disk: "accepted" means
committed, and no worker is asked for whose lease a later broker would not find.
"""

import os
import sqlite3

import msgspec

from sublet.backends.local import logs, tree
from sublet.backends.local.launcher import Launcher
from sublet.backends.local.lodgers import Lodgers
from sublet.backends.local.nurseries import NurseryKey
from sublet.backends.local.reports import Ending
from sublet.broker import rooms as fullness
from sublet.broker.appraisal import Appraiser
from sublet.broker.books import Books, Undo
from sublet.broker.clients import Clients, close
from sublet.broker.dependencies import Dependencies
from sublet.broker.events import (
    AttemptEnded,
    Granted,
    LeaseTrimmed,
    NeverRan,
    StopAsked,
    Withdrawn,
    WorkerStarted,
)
from sublet.broker.guests import Guests
from sublet.broker.ledger import Ledger
from sublet.broker.nests import Nests
from sublet.broker.orders import inside_lease, mark, text_environment, worker_spec
from sublet.broker.picture import Picture
from sublet.broker.queue import Queue
from sublet.broker.rooms import Sample, Strangers
from sublet.broker.sessions import Session
from sublet.broker.trimmer import Trimmer
from sublet.broker.verdict import outcome as judge
from sublet.broker.watchers import Watchers
from sublet.clock import Clock
from sublet.devices import Probe
from sublet.domain.device import Device
from sublet.domain.job import (
    Again,
    Cause,
    Finished,
    Job,
    Outcome,
    Paused,
    Process,
    Running,
    Starting,
    Tenant,
    Waiting,
)
from sublet.domain.lease import Lease
from sublet.errors import BadRequest, WorldError
from sublet.home import Home
from sublet.hub import Hub
from sublet.policy import admission, retry
from sublet.policy.admission import Grant, Plan
from sublet.policy.reasons import Reasons
from sublet.policy.rooms import Room
from sublet.wire import messages as say

_DOWN = "`sublet down --stop`"
_LOOP = f"a crash loop: it ended {retry.LOOP} times in the same way, soon after its start"
_RETRY_WRITING = 1.0
_MOST_FINISHED = 10_000
"""So many finished jobs are remembered; older ones go when a broker starts."""
_LOOK_AGAIN = 2.0
"""Seconds between looks at strangers' memory while somebody waits."""
_COMES_BACK = 10.0
"""Seconds in which a process that waits for a lease of its own finds the next broker."""


class Broker:
    """All of it, in one thread."""

    CLIENT_GONE = "its client ended before it could start"

    def __init__(self, hub: Hub, home: Home, ledger: Ledger, probe: Probe, clock: Clock) -> None:
        self.hub = hub
        self.home = home
        self.probe = probe
        self.clock = clock
        self.books = Books(ledger)
        self.state = self.books.state
        self.clients = Clients()
        self.watchers = Watchers()
        self.picture = Picture(self)
        self.askers: dict[int, Session] = {}
        """Who is to hear that the jobs up to this one were accepted."""
        self.launcher = Launcher(hub, home.runs, home.log, self)
        self.lodgers = Lodgers(hub, home.runs, self)
        self.devices: dict[str, Device] = {device.id: device for device in probe.devices()}
        self.guests = Guests(self.launcher, self.devices)
        self.appraiser = Appraiser(ledger, self.devices)
        self.dependencies = Dependencies(self.books)
        self.queue = Queue(self.state, self.appraiser, self.dependencies, self._unready, clock.now)
        self.strangers = Strangers()
        self.nests = Nests(self.state, home.runs)
        self.began = clock.wall()
        self.ending = False
        self.closing = False
        self._looking = False
        self._revising = False
        self.next_id = ledger.last_id() + 1
        self._trimmer = Trimmer(home.runs)
        self._trimming = False
        self.samples: dict[str, Sample] = {}
        self._told: dict[int, str] = {}
        self.ends: dict[int, float] = {}
        """When the jobs that run are expected to end, in monotonic time."""
        self._boot(ledger)
        self._prune()

    def run(self) -> None:
        """Until somebody says `down`."""
        self._settle()
        while not self.ending:
            self.hub.turn()
            self._settle()
        self.close()

    def close(self) -> None:
        """End the nurseries and the ledger; workers and keepers go on."""
        self.launcher.close()
        self.lodgers.close()
        self.books.ledger.close()

    def down(self, session: Session, stop: bool) -> None:
        """End; programs go on unless they are to be stopped, and the queue stays in the ledger.

        Lodgers go on in any case: they are somebody's notebook.
        """
        snapshot = self.picture.snapshot()
        session.reply(say.Downed(snapshot.leases, snapshot.waiting))
        self.closing = True
        if not stop:
            self.clients.tell_all(say.Leaving())
            self.ending = True
            return
        for job in self.state.jobs():
            if job.holds is not None:
                if job.spec.lodger is None:
                    self.stop(job, _DOWN)
            elif job.spec.client is not None:
                self.withdraw(job, f"{_DOWN} came first")
        self._end_when_idle()

    def _end_when_idle(self) -> None:
        if any(job.spec.lodger is None for job in self.state.holding()):
            self.hub.later(0.05, self._end_when_idle)
        else:
            self.ending = True

    # What the launcher reports.

    def started(self, run: str, keeper: Process, worker: Process, how: str) -> None:
        """A worker runs; a broker that has adopted it knew that already."""
        job = self._of(run)
        if job is None or not isinstance(job.holds, Starting):
            return
        at = self.clock.wall()
        self.books.happened(WorkerStarted(job.id, job.attempt, at, keeper, worker, how))
        self.clients.tell(job.id, say.Started(worker.pid, how))

    def sampled(self, run: str, now: int, peak: int, pids: list[int], busy: float) -> None:
        """What a tree holds and does has changed."""
        self.samples[run] = Sample(now, peak, tuple(pids), busy)
        self.guests.hold(self.state.holding(), self.samples)

    def ended(self, run: str, ending: Ending) -> None:
        """The exit was seen: the lease ends here, and nowhere else."""
        job = self._of(run)
        if job is None:
            return
        assert job.lease is not None
        lease = job.lease
        told = judge(job, ending, str(self.home.runs / run), self._neighbours(job, lease))
        at = self.clock.wall()
        lent = self.nests.take_most(run)
        if lease.device in self.devices and ending.status is not None:
            warm = isinstance(job.holds, Running) and job.holds.how == "warm"
            kind = self.devices[lease.device].kind
            start = "lodger" if job.spec.lodger else "warm" if warm else "cold"
            self.books.measured(job, kind, lease.ceiling, _with_lent(told, lent), start, at)
            self.books.when_written(lambda: self._learned(job))
        self.strangers.lease_ended(lease.device, lease.charge, self.clock.now())
        again = self._second_try(job, lease, told)
        if again is None and job.spec.client is None and retry.loops(job, told):
            told = msgspec.structs.replace(told, message=_LOOP)
        tick = self.clock.now()
        now = self.books.happened(AttemptEnded(job.id, job.attempt, at, told, again, tick))
        self.samples.pop(run, None)
        self.ends.pop(job.id, None)
        self.guests.forget(run)
        self.books.when_written(lambda: self.launcher.forget(run))
        self._end_inner(job)
        if again is None:
            self._close_job(now)
        else:
            self.nests.settle(job.spec.within)
            self.clients.tell(job.id, say.Retried(told, lease, again.least))
            self._wake_after(job.id, again.delay)

    def _learned(self, job: Job) -> None:
        """The ledger knows how this run went: others of the same program are sized by it."""
        self.queue.revise(self.appraiser.measured(job))
        self.books.changed = True

    def never_ran(self, run: str, why: str) -> None:
        """No line of the program has run: it waits again, and nothing is lost."""
        job = self._of(run)
        if job is None:
            return
        self.books.happened(NeverRan(job.id, job.attempt, self.clock.wall(), self.clock.now()))
        self.samples.pop(run, None)
        self.nests.settle(job.spec.within)
        self.books.when_written(lambda: self.launcher.forget(run))
        stopping = job.holds.stopping if job.holds is not None else ""
        if job.spec.client is None:
            if stopping == "cancelled":
                self.withdraw(job, "`sublet cancel`", "cancelled")
        elif stopping and job.id not in self.clients:
            # Its client lives, as that of a pool does, and has hung up on this job.
            self.withdraw(job, self.CLIENT_GONE)
        elif self.closing:
            self.withdraw(job, f"{_DOWN} came first")
        elif not _client_lives(job) and (job.id not in self.clients or job.spec.lodger):
            self.withdraw(job, self.CLIENT_GONE)
        elif job.id not in self.clients and job.spec.lodger:
            self._await_client(job)

    def nurseries_changed(self) -> None:
        """What could not start may be able to now."""
        self.queue.touch_all()
        self.books.changed = True

    def _second_try(self, job: Job, lease: Lease, told: Outcome) -> Again | None:
        """The terms of another attempt, if there is to be one."""
        if job.spec.client is not None and (job.id not in self.clients or self.closing):
            return None
        larger = None
        if told.cause == "lease exceeded":
            larger = self.appraiser.suggest(job, lease, told, self.rooms())
        return retry.again(job, told, larger)

    def _wake_after(self, number: int, delay: float) -> None:
        """Plan again when a job that was put off may start."""

        def wake() -> None:
            self.queue.touch(number)
            self.books.changed = True

        if delay:
            self.hub.later(delay, wake)

    # Deciding.

    def rooms(self, *outer: int) -> tuple[Room, ...]:
        """How full the devices are now, and the leases with others within. `outer` are jobs whose
        leases are wanted though nobody is within yet."""
        nurseries = [n for n in self.launcher.nurseries.all() if n.state != "off"]
        standing = sum(nursery.holds for nursery in nurseries)
        return fullness.rooms(
            self.probe.facts(),
            self.state.holding(),
            self.samples,
            standing,
            self.strangers,
            self.clock.now(),
            self.ends,
            self.nests.lenders(*outer),
        )

    def plan(self) -> Plan:
        """Who gets a lease now."""
        rooms = self.rooms()
        for number in self.books.take_touched():
            self.queue.touch(number)
        for job in self.queue.update(rooms):
            self.withdraw(job, self.dependencies.hopeless(job), "dependency")
        for job, why in list(self.nests.cramped(rooms, self.queue.line, self.clock.now())):
            self.queue.line.take(job.id)
            self.withdraw(job, why)
        return admission.plan(rooms, self.queue.line, self.clock.now())

    def _settle(self) -> None:
        """After each turn: decide, write down, act; and again, as long as acting brings news."""
        while self.books.news:
            # What was measured is written first: the next of the same program is sized by it.
            if self.books.changed and not self.books.unlearned:
                self.books.changed = False
                due = self.state.waits or self.queue.line or self.queue.behind
                if due and not self.closing:
                    self._follow(self.plan())
            changed = self.books.unwritten()
            undone, error = self.books.write()
            if error is not None:
                self._refuse(undone, error)
                self.hub.later(_RETRY_WRITING, self._look_again)
                break
            self.watchers.tell(changed, self.picture.row)
            self.guests.hold(self.state.holding(), self.samples)
        if self.queue.behind and not self._revising and not self.closing:
            self._revising = True
            self.hub.later(0.0, self._revise)
        if self.state.waits and not self._looking:
            # Strangers come and go without telling us.
            self._looking = True
            self.hub.later(_LOOK_AGAIN, self._look_again)
        if not self._trimming and self._trimmer.watches(self.state.holding()):
            self._trimming = True
            self.hub.later(_LOOK_AGAIN, self._trim)

    def _trim(self) -> None:
        """The room that settled programs do not need goes to those that wait."""
        self._trimming = False
        # What is lent now and then looks like room that is never needed.
        whole = [job for job in self.state.holding() if not self.nests.has_lent(job)]
        for job, ceiling in self._trimmer.look(whole, self.clock.now()):
            self.books.happened(LeaseTrimmed(job.id, job.attempt, ceiling))

    def _revise(self) -> None:
        """Go on with what the last plan has left for later; clients are heard in between."""
        self._revising = False
        self.books.changed = True

    def _look_again(self) -> None:
        self._looking = False
        self.books.changed = True

    def _follow(self, plan: Plan) -> None:
        now = self.clock.now()
        for grant in plan.grants:
            self._grant(self.state[grant.job], grant)
        for preemption in plan.preempt:
            self.stop(self.state[preemption.job], "preempted")
        self.queue.line.follow(plan, now)
        # Only those who listen are told: the others' reasons are made when somebody asks.
        present = [job for job in self.clients.jobs() if job in self.queue.line]
        if not present:
            return
        reasons = Reasons(self.rooms(), self.queue.line, now, present)
        for number in present:
            reason = reasons.why(number, estimate=False)
            if self._told.get(number) != reason:
                self._told[number] = reason
                self.clients.tell(number, say.Waits(reason))

    def _grant(self, job: Job, grant: Grant) -> None:
        outer = self.state[job.spec.within].lease if job.spec.within is not None else None
        lease = Lease(
            device=grant.device if outer is None else outer.device,
            ceiling=grant.size.ceiling,
            charge=grant.charge,
            basis=grant.size.basis,
            cpus=self._processors(job),
            tight=grant.size.tight,
        )
        self._told.pop(job.id, None)
        self._expect(job, self.clock.now())
        self.books.decided(
            job,
            Granted(job.id, self.clock.wall(), self.clock.now(), lease),
            lambda: self.nests.settle(job.spec.within),
            lambda: self.clients.tell(job.id, say.Granted(lease, job.attempt)),
            lambda: self._start(job.id),
        )

    def _expect(self, job: Job, since: float) -> None:
        expected = self.appraiser.expected(job)
        if expected is not None:
            self.ends[job.id] = since + expected

    def _unready(self, job: Job) -> str:
        """Why a job could not be started for the moment; empty if it could.

        A job that can start warm waits for its nursery, which also settles what that one holds.
        """
        if job.spec.client is not None and job.id not in self.clients:
            return "its client has not come back yet"
        key = _nursery_key(job)
        if key is None or job.spec.cold:
            return ""
        nursery = self.launcher.nurseries.find(key, text_environment(job))
        loading = "TensorFlow is being loaded, once for all programs"
        return loading if nursery.state == "warming up" else ""

    def _processors(self, job: Job) -> tuple[int, ...]:
        """The least used processors, as many as the job asked for; empty if it did not ask."""
        if job.spec.cpus is None:
            return ()
        used = [cpu for other in self.state.holding() if other.lease for cpu in other.lease.cpus]
        mine = sorted(job.spec.surroundings.affinity, key=lambda cpu: (used.count(cpu), cpu))
        return tuple(sorted(mine[: job.spec.cpus]))

    def _refuse(self, undone: list[Undo], error: sqlite3.Error) -> None:
        """Say to those whose jobs could not be written down that they were not accepted."""
        refusal = WorldError(
            f"The ledger cannot be written: {error}.",
            f"Free some space for {self.home.path}; nothing was started.",
        )
        for before, after in undone:
            if before is None:
                session = self.clients.part(after.id) or self.askers.pop(after.id, None)
                if session is not None:
                    session.job = None
                    session.refuse(refusal)

    # Acting.

    def _start(self, number: int) -> None:
        job = self.state.get(number)
        if job is None or not isinstance(job.state, Starting):
            return
        own = job.spec.client is None
        streams = None if own else self.clients.streams(number)
        if not own and streams is None:
            # The client left between the grant and here; the attempt was never made.
            self.never_ran(job.run, "its client left")
            return
        if job.spec.lodger is not None:
            self._offer(job, job.state.lease, job.spec.lodger)
            return
        lease = job.state.lease
        try:
            if streams is None:
                streams = logs.open_streams(str(self.home.logs), job.run, job.spec.split)
            self.launcher.start(
                run=job.run,
                record=msgspec.json.encode(job),
                spec=worker_spec(job, lease, self.devices[lease.device], self.home),
                mark=mark(job),
                streams=streams,
                cold=job.spec.cold,
                key=_nursery_key(job),
            )
        except OSError as error:
            self._not_started(job, error)
        finally:
            if own and streams is not None:
                close(streams)

    def _offer(self, job: Job, lease: Lease, lodger: Process) -> None:
        """Nothing is to be started: the process that waits takes its lease itself."""
        try:
            self.lodgers.offer(job.run, msgspec.json.encode(job), lodger)
        except OSError as error:
            self._not_started(job, error)
            return
        inside = inside_lease(job, lease, self.devices[lease.device], self.home)
        self.clients.tell(job.id, say.Offered(inside.to_json()))

    def _not_started(self, job: Job, error: OSError) -> None:
        told = Outcome("stopped", 126, message=f"it could not be started: {error.strerror}")
        event = AttemptEnded(job.id, job.attempt, self.clock.wall(), told)
        self._close_job(self.books.happened(event))

    def stop(self, job: Job, why: str) -> None:
        """Ask a job's tree to end; its lease ends when the exit is seen."""
        self.books.happened(StopAsked(job.id, why))
        self.launcher.stop(job.run, why, job.spec.grace)

    def resume(self, job: Job) -> None:
        """Let a paused tree go on; what it did before says nothing of what it does now."""
        if (sample := self.samples.get(job.run)) is not None:
            self.samples[job.run] = msgspec.structs.replace(sample, busy=None)
        self.launcher.pause(job.run, False)

    def withdraw(self, job: Job, why: str, cause: Cause = "stopped") -> None:
        """A job that holds nothing is not wanted any more."""
        told = Outcome(cause, 143, message=why)
        self._close_job(self.books.happened(Withdrawn(job.id, self.clock.wall(), told)))

    def _end_inner(self, outer: Job) -> None:
        """What came out of a lease goes with it."""
        why = f"#{outer.id}, out of whose lease its own came, has ended"
        for job in self.state.within(outer.id):
            if job.holds is not None:
                self.stop(job, why)
            else:
                self.withdraw(job, why)

    def _boot(self, ledger: Ledger) -> None:
        """Take over what an earlier broker has left, of this boot of the machine or another."""
        boot = tree.boot()
        rebooted = ledger.fact("boot") not in (None, boot)
        ledger.note("boot", boot)
        ledger.commit()
        for job in self.state.jobs():
            if job.holds is not None and job.spec.lodger is not None:
                taken = isinstance(job.holds, Running)
                self.lodgers.adopt(job.run, job.spec.lodger, taken, rebooted)
            elif job.holds is not None:
                self._expect(job, job.holds.tick)
                self.launcher.adopt(job.run, mark(job), rebooted)
                # The ledger decides: its keeper may have heard what was never written down, and not
                # have heard what was.
                self.launcher.pause(job.run, isinstance(job.state, Paused))
                if job.holds.stopping:
                    self.launcher.stop(job.run, job.holds.stopping, job.spec.grace)
            elif job.spec.client is None:
                if isinstance(job.state, Waiting):
                    self._wake_after(job.id, self.queue.delay(job))
            elif not _client_lives(job):
                self.withdraw(job, self.CLIENT_GONE)
            else:
                self._await_client(job)
        self.nests.adopt()

    def _prune(self) -> None:
        """Forget the oldest of the finished jobs, and what they have said."""
        forgotten = self.books.ledger.prune(_MOST_FINISHED)
        self.books.ledger.commit()
        if forgotten:
            last = max(forgotten)
            for path in self.home.logs.iterdir():
                number = path.name.partition(".")[0]
                if number.isdecimal() and int(number) <= last and int(number) not in self.state:
                    path.unlink(missing_ok=True)

    def _await_client(self, job: Job) -> None:
        """A waiting job whose client has not come back: it is dropped if the client ends."""
        assert job.spec.client is not None

        def drop() -> None:
            now = self.state.get(job.id)
            if now is not None and isinstance(now.state, Waiting) and job.id not in self.clients:
                self.withdraw(job, self.CLIENT_GONE)

        if job.spec.lodger is not None:
            # A process goes on when it has given up waiting, so it is known by not coming back.
            self.hub.later(_COMES_BACK, drop)
            return
        descriptor = os.pidfd_open(job.spec.client.pid)

        def gone() -> None:
            self.hub.unwatch(descriptor)
            os.close(descriptor)
            drop()

        self.hub.watch(descriptor, gone)

    # Telling.

    def job(self, number: int) -> Job:
        """This job, live or finished."""
        job = self.books.find(number)
        if job is None:
            raise BadRequest(f"There is no job {number}.", "`sublet ps` shows which there are.")
        return job

    def tell_reason_again(self, number: int) -> None:
        """Its client is new and has not heard why it waits."""
        self._told.pop(number, None)
        self.queue.touch(number)
        self.books.changed = True

    def _close_job(self, job: Job) -> None:
        """The job has finished: let its streams go, then say so."""
        self.nests.settle(job.spec.within)
        self._told.pop(job.id, None)
        session = self.clients.part(job.id)
        if session is not None:
            self.tell_ended(session, job)

    def tell_ended(self, session: Session, job: Job) -> None:
        assert isinstance(job.state, Finished)
        told, lease = job.state.outcome, job.state.lease
        suggest = None
        if told.cause == "lease exceeded" and lease is not None:
            suggest = self.appraiser.suggest(job, lease, told, self.rooms())
        session.reply(say.Ended(job.id, told, lease, job.state.how, job.attempt, suggest))

    def _neighbours(self, job: Job, lease: Lease) -> tuple[Tenant, ...]:
        """Who else held memory on the job's device, for the story of its end."""
        room = next((room for room in self.rooms() if room.device.id == lease.device), None)
        if room is None:
            return ()
        return tuple(tenant for tenant in room.tenants if tenant.job != job.id)

    def _of(self, run: str) -> Job | None:
        """The live job whose current attempt this is; late news of an old one is no news."""
        job = self.state.get(int(run.partition(".")[0]))
        return job if job is not None and job.run == run else None


def _with_lent(told: Outcome, lent: int) -> Outcome:
    """What a lease was needed for: its program, and what that lent to others."""
    if not lent:
        return told
    system = None if told.system_peak is None else told.system_peak + lent
    return msgspec.structs.replace(told, peak=(told.peak or 0) + lent, system_peak=system)


def _nursery_key(job: Job) -> NurseryKey | None:
    """The nursery this job could come from; None for a program that is not Python."""
    python = job.spec.program.python
    return NurseryKey.of(os.fsdecode(python), text_environment(job)) if python else None


def _client_lives(job: Job) -> bool:
    client = job.spec.client
    return client is not None and tree.is_alive(client.pid, client.start)
