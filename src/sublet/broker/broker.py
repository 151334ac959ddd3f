"""The broker's loop: hear, decide, write down, act.

    hub.turn ──▶ callbacks ──▶ state.apply ──▶ plan ──▶ state.apply ──▶ ledger.commit ──▶ effects

Effects of a decision (accepting, granting, starting) wait until it is on disk: "accepted" means
committed, and no worker is asked for whose lease a later broker would not find.
"""

import os
import secrets
import sqlite3
import traceback

import msgspec

import sublet
from sublet.backends.local import tree
from sublet.backends.local.launcher import Ending, Launcher
from sublet.backends.local.nurseries import NurseryKey
from sublet.broker import rooms as fullness
from sublet.broker import views
from sublet.broker.appraisal import Appraiser
from sublet.broker.books import Books, Undo
from sublet.broker.clients import Clients, close
from sublet.broker.ledger import Ledger
from sublet.broker.orders import mark, text_environment, worker_spec
from sublet.broker.rooms import Sample
from sublet.broker.sessions import Session
from sublet.broker.state import (
    AttemptEnded,
    Granted,
    LeaseTrimmed,
    NeverRan,
    StopAsked,
    Submitted,
    Withdrawn,
    WorkerStarted,
)
from sublet.broker.trimmer import Trimmer
from sublet.broker.verdict import outcome as judge
from sublet.clock import Clock
from sublet.devices import Probe
from sublet.domain.device import Device
from sublet.domain.history import Forecast
from sublet.domain.job import (
    Finished,
    Job,
    JobSpec,
    Outcome,
    Process,
    Running,
    Starting,
    Tenant,
    Waiting,
)
from sublet.domain.lease import Lease
from sublet.errors import BadRequest, InternalError, SubletError, WorldError
from sublet.home import Home
from sublet.hub import Hub
from sublet.policy import admission
from sublet.policy.admission import Grant, Plan, Room
from sublet.wire import messages as say

_CLIENT_GONE = "its client ended before it could start"
_DOWN = "`sublet down --stop`"
_RETRY_WRITING = 1.0
_LOOK_AGAIN = 2.0
"""Seconds between looks at strangers' memory while somebody waits."""


class Broker:
    """All of it, in one thread."""

    def __init__(self, hub: Hub, home: Home, ledger: Ledger, probe: Probe, clock: Clock) -> None:
        self.hub = hub
        self.home = home
        self.probe = probe
        self.clock = clock
        self.books = Books(ledger)
        self.state = self.books.state
        self.clients = Clients()
        self.launcher = Launcher(hub, home.runs, home.log, self)
        self.devices: dict[str, Device] = {device.id: device for device in probe.devices()}
        self.appraiser = Appraiser(ledger, self.devices)
        self.began = clock.wall()
        self.ending = False
        self._closing = False
        self._looking = False
        self._trimmer = Trimmer(home.runs)
        self._trimming = False
        self._next = ledger.last_id() + 1
        self._samples: dict[str, Sample] = {}
        self._told: dict[int, str] = {}
        self._adopt()

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
        self.books.ledger.close()

    # What clients want.

    def asked(self, session: Session, request: say.Request) -> None:
        """Deal with one request."""
        try:
            match request:
                case say.Run(spec=spec, token=token):
                    self._accept(session, spec, token)
                case say.Attach(job=number, token=token):
                    self._attach(session, number, token)
                case say.Signal(number=number):
                    self._signal(session, number)
                case say.AskStatus():
                    session.reply(self.snapshot())
                case say.Down(stop=stop):
                    self._down(session, stop)
                case say.AskExplain(job=number):
                    session.reply(self._explain(number))
                case say.KeepForecast(spec=spec, forecast=forecast):
                    self._keep_forecast(session, spec, forecast)
        except SubletError as error:
            session.refuse(error)
        except Exception as error:
            # One request must not end the broker for all others.
            traceback.print_exc()
            bug = f"The broker could not deal with that: {error!r}."
            session.refuse(InternalError(bug, f"Please report it; details are in {self.home.log}."))

    def left(self, session: Session) -> None:
        """A client that is gone takes its job with it."""
        number = self.clients.speaks_for(session)
        job = self.state.get(number) if number is not None else None
        if job is None:
            return
        self.clients.part(job.id)
        if isinstance(job.state, Waiting):
            self._withdraw(job, _CLIENT_GONE)
        else:
            self._stop(job, "its client ended")

    def _accept(self, session: Session, spec: JobSpec, token: str) -> None:
        twin = next((job for job in self.state.jobs() if job.token == token), None)
        if twin is not None:
            session.reply(say.Accepted(twin.id))
            self._attach(session, twin.id, token)
            return
        streams = session.take_streams()
        try:
            if len(streams) != 3:
                raise BadRequest(f"A program needs three streams; {len(streams)} came.")
            if session.job is not None:
                raise BadRequest("This connection has a job already.")
            self.appraiser.check(spec, self.rooms())
        except SubletError:
            close(streams)
            raise
        at = self.clock.wall()
        job = Job(self._next, token, spec, at, Waiting(at))
        self._next += 1
        self.clients.join(job.id, session, streams)
        self.books.decided(None, Submitted(job), lambda: session.reply(say.Accepted(job.id)))

    def _attach(self, session: Session, number: int, token: str) -> None:
        streams = session.take_streams()
        job = self.state.get(number) or self.books.ledger.find(number)
        if job is None or not secrets.compare_digest(job.token, token):
            close(streams)
            raise BadRequest(f"Job {number} is not yours, or not here.")
        if isinstance(job.state, Finished):
            close(streams)
            self._tell_ended(session, job)
            return
        self.clients.join(job.id, session, streams)
        self._told.pop(job.id, None)
        self.books.changed = True
        if job.lease is not None:
            session.reply(say.Granted(job.lease, job.attempt))
        if isinstance(job.state, Running):
            session.reply(say.Started(job.state.worker.pid, job.state.how))

    def _signal(self, session: Session, signal: int) -> None:
        number = self.clients.speaks_for(session)
        job = self.state.get(number) if number is not None else None
        if job is not None and job.lease is not None:
            self.launcher.signal(job.run, signal)

    def _down(self, session: Session, stop: bool) -> None:
        snapshot = self.snapshot()
        session.reply(say.Downed(snapshot.leases, snapshot.waiting))
        self._closing = True
        if not stop:
            self.clients.tell_all(say.Leaving())
            self.ending = True
            return
        for job in self.state.waiting():
            self._withdraw(job, f"{_DOWN} came first")
        for job in self.state.holding():
            self._stop(job, _DOWN)
        self._end_when_idle()

    def _explain(self, number: int) -> say.Explained:
        job = self.state.get(number) or self.books.ledger.find(number)
        if job is None:
            raise BadRequest(f"There is no job {number}.", "`sublet status` shows those there are.")
        return say.Explained(self.appraiser.explain(job, self.rooms()))

    def _keep_forecast(self, session: Session, spec: JobSpec, forecast: Forecast) -> None:
        try:
            self.appraiser.keep_forecast(spec, forecast)
            self.books.ledger.commit()
        except sqlite3.Error as error:
            self.books.ledger.rollback()
            hint = f"Free some space for {self.home.path}; the probe's result is lost."
            raise WorldError(f"The ledger cannot be written: {error}.", hint) from error
        job = Job(0, "", spec, self.clock.wall(), Waiting(self.clock.wall()))
        session.reply(say.Explained(self.appraiser.explain(job, self.rooms())))

    def _end_when_idle(self) -> None:
        if self.state.jobs():
            self.hub.later(0.05, self._end_when_idle)
        else:
            self.ending = True

    # What the launcher reports.

    def started(self, run: str, keeper: Process, worker: Process, how: str) -> None:
        """A worker runs; a broker that has adopted it knew that already."""
        job = self._of(run)
        if job is None or not isinstance(job.state, Starting):
            return
        at = self.clock.wall()
        self.books.happened(WorkerStarted(job.id, job.attempt, at, keeper, worker, how))
        self.clients.tell(job.id, say.Started(worker.pid, how))

    def sampled(self, run: str, now: int, peak: int, pids: list[int]) -> None:
        """What a tree holds has changed."""
        self._samples[run] = Sample(now, peak, tuple(pids))

    def ended(self, run: str, ending: Ending) -> None:
        """The exit was seen: the lease ends here, and nowhere else."""
        job = self._of(run)
        if job is None:
            return
        assert job.lease is not None
        lease = job.lease
        told = judge(job, ending, str(self.home.runs / run), self._neighbours(job, lease))
        at = self.clock.wall()
        if lease.device in self.devices and ending.status is not None:
            warm = isinstance(job.state, Running) and job.state.how == "warm"
            kind = self.devices[lease.device].kind
            start = "warm" if warm else "cold"
            self.books.measured(job, kind, lease.ceiling, told, start, at)
        least = self._second_try(job, lease, told)
        now = self.books.happened(AttemptEnded(job.id, job.attempt, at, told, least))
        self._samples.pop(run, None)
        self.books.when_written(lambda: self.launcher.forget(run))
        if least:
            self.clients.tell(job.id, say.Retried(told, lease, least))
        else:
            self._close_job(now)

    def never_ran(self, run: str, why: str) -> None:
        """No line of the program has run: it waits again, and nothing is lost."""
        job = self._of(run)
        if job is None:
            return
        self.books.happened(NeverRan(job.id, job.attempt, self.clock.wall()))
        self._samples.pop(run, None)
        self.books.when_written(lambda: self.launcher.forget(run))
        if self._closing:
            self._withdraw(job, f"{_DOWN} came first")
        elif job.id not in self.clients and not _client_lives(job):
            self._withdraw(job, _CLIENT_GONE)

    def nurseries_changed(self) -> None:
        """What could not start may be able to now."""
        self.books.changed = True

    def _second_try(self, job: Job, lease: Lease, told: Outcome) -> int:
        """The ceiling for another attempt; 0 if there is to be none."""
        wanted = told.cause == "lease exceeded" and job.spec.on_oom == "grow"
        if not wanted or job.id not in self.clients or self._closing:
            return 0
        return self.appraiser.suggest(job, lease, told, self.rooms()) or 0

    # Deciding.

    def rooms(self) -> tuple[Room, ...]:
        """How full the devices are now."""
        nurseries = [n for n in self.launcher.nurseries.all() if n.state != "off"]
        standing = sum(nursery.holds for nursery in nurseries)
        return fullness.rooms(self.probe.facts(), self.state.holding(), self._samples, standing)

    def plan(self) -> Plan:
        """Who gets a lease now, and why the others wait."""
        waiting = [self.appraiser.candidate(job, self._held(job)) for job in self.state.waiting()]
        return admission.plan(self.rooms(), tuple(waiting))

    def _settle(self) -> None:
        """After each turn: decide, write down, act; and again, as long as acting brings news."""
        while self.books.news:
            if self.books.changed:
                self.books.changed = False
                if self.state.waiting() and not self._closing:
                    self._follow(self.plan())
            undone, error = self.books.write()
            if error is not None:
                self._refuse(undone, error)
                self.hub.later(_RETRY_WRITING, self._look_again)
                break
        if self.state.waiting() and not self._looking:
            # Strangers come and go without telling us.
            self._looking = True
            self.hub.later(_LOOK_AGAIN, self._look_again)
        if not self._trimming and self._trimmer.watches(self.state.holding()):
            self._trimming = True
            self.hub.later(_LOOK_AGAIN, self._trim)

    def _trim(self) -> None:
        """The room that settled programs do not need goes to those that wait."""
        self._trimming = False
        for job, ceiling in self._trimmer.look(self.state.holding(), self.clock.now()):
            self.books.happened(LeaseTrimmed(job.id, job.attempt, ceiling))

    def _look_again(self) -> None:
        self._looking = False
        self.books.changed = True

    def _follow(self, plan: Plan) -> None:
        for grant in plan.grants:
            self._grant(self.state[grant.job], grant)
        for number, reason in plan.reasons.items():
            if self._told.get(number) != reason:
                self._told[number] = reason
                self.clients.tell(number, say.Waits(reason))

    def _grant(self, job: Job, grant: Grant) -> None:
        lease = Lease(
            device=grant.device,
            ceiling=grant.size.ceiling,
            charge=grant.charge,
            basis=grant.size.basis,
            cpus=self._processors(job),
            tight=grant.size.tight,
        )
        self._told.pop(job.id, None)
        self.books.decided(
            job,
            Granted(job.id, self.clock.wall(), self.clock.now(), lease),
            lambda: self.clients.tell(job.id, say.Granted(lease, job.attempt)),
            lambda: self._start(job.id),
        )

    def _held(self, job: Job) -> str:
        """Why a job could not start now, whatever is free; empty if it could.

        A job that can start warm waits for its nursery, which also settles what that one holds.
        """
        if job.id not in self.clients:
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
            if before is None and (session := self.clients.part(after.id)) is not None:
                session.job = None
                session.refuse(refusal)

    # Acting.

    def _start(self, number: int) -> None:
        job = self.state.get(number)
        if job is None or not isinstance(job.state, Starting):
            return
        streams = self.clients.streams(number)
        if streams is None:
            # The client left between the grant and here; the attempt was never made.
            self.never_ran(job.run, "its client left")
            return
        lease = job.state.lease
        try:
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
            told = Outcome("lost", 126, message=f"it could not be started: {error.strerror}")
            event = AttemptEnded(job.id, job.attempt, self.clock.wall(), told)
            self._close_job(self.books.happened(event))

    def _stop(self, job: Job, why: str) -> None:
        if isinstance(job.state, Running):
            self.books.happened(StopAsked(job.id, why))
        self.launcher.stop(job.run, why)

    def _withdraw(self, job: Job, why: str) -> None:
        """A job that holds nothing is not wanted any more."""
        told = Outcome("stopped", 143, message=why)
        self._close_job(self.books.happened(Withdrawn(job.id, self.clock.wall(), told)))

    def _adopt(self) -> None:
        """Take over what an earlier broker has left."""
        for job in self.state.jobs():
            if isinstance(job.state, Starting | Running):
                self.launcher.adopt(job.run, mark(job))
            elif not _client_lives(job):
                self._withdraw(job, _CLIENT_GONE)
            else:
                self._await_client(job)

    def _await_client(self, job: Job) -> None:
        """A waiting job whose client has not come back: it is dropped if the client ends."""
        descriptor = os.pidfd_open(job.spec.client.pid)

        def gone() -> None:
            self.hub.unwatch(descriptor)
            os.close(descriptor)
            now = self.state.get(job.id)
            if now is not None and isinstance(now.state, Waiting) and job.id not in self.clients:
                self._withdraw(job, _CLIENT_GONE)

        self.hub.watch(descriptor, gone)

    # Telling.

    def snapshot(self) -> say.Snapshot:
        """All that is known now."""
        facts = self.probe.facts()
        return say.Snapshot(
            version=sublet.__version__,
            pid=os.getpid(),
            home=str(self.home.path),
            up=self.clock.wall() - self.began,
            driver=self.probe.driver,
            devices=views.device_rows(self.rooms()),
            leases=views.lease_rows(self.state.holding(), facts, self._samples, self.home),
            waiting=views.waiting_rows(self.state.waiting(), self._told),
            nurseries=views.nursery_rows(self.launcher.nurseries.all()),
        )

    def _close_job(self, job: Job) -> None:
        """The job has finished: let its streams go, then say so."""
        self._told.pop(job.id, None)
        session = self.clients.part(job.id)
        if session is not None:
            self._tell_ended(session, job)

    def _tell_ended(self, session: Session, job: Job) -> None:
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


def _nursery_key(job: Job) -> NurseryKey | None:
    """The nursery this job could come from; None for a program that is not Python."""
    python = job.spec.program.python
    return NurseryKey.of(os.fsdecode(python), text_environment(job)) if python else None


def _client_lives(job: Job) -> bool:
    return tree.is_alive(job.spec.client.pid, job.spec.client.start)
