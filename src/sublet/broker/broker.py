"""The broker's loop: hear, decide, write down, act.

    hub.turn ──▶ callbacks ──▶ state.apply ──▶ plan ──▶ state.apply ──▶ ledger.commit ──▶ effects

Effects (replies, starts) wait until what they rest on is on disk: "accepted" means committed, and
no worker is asked for whose lease a later broker would not find.
"""

import os
import secrets
import sqlite3
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec

import sublet
from sublet.backends.local import tree
from sublet.backends.local.launcher import Ending, Launcher
from sublet.backends.local.nurseries import NurseryKey
from sublet.broker import rooms as fullness
from sublet.broker import views
from sublet.broker.ledger import Ledger
from sublet.broker.orders import mark, text_environment, worker_spec
from sublet.broker.rooms import Sample
from sublet.broker.sessions import Session
from sublet.broker.state import (
    AttemptEnded,
    Event,
    Granted,
    NeverRan,
    State,
    StopAsked,
    Submitted,
    Undone,
    Withdrawn,
    WorkerStarted,
)
from sublet.broker.verdict import outcome as judge
from sublet.clock import Clock
from sublet.devices import Probe, context_overhead
from sublet.domain.device import Device
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
from sublet.errors import BadRequest, InternalError, SubletError, TooLarge, WorldError
from sublet.home import Home
from sublet.hub import Hub
from sublet.policy import admission, sizing
from sublet.policy.admission import Candidate, Plan, Room
from sublet.units import MiB
from sublet.wire import messages as say

_USUAL_OUTSIDE = {"warm": 128 * MiB, "cold": 384 * MiB}
"""What a process costs beside its pool, before any was measured."""
_CLIENT_GONE = "its client ended before it could start"
_RETRY_COMMIT = 1.0
_LOOK_AGAIN = 2.0
"""Seconds between looks at strangers' memory while somebody waits."""


class Broker:
    """All of it, in one thread."""

    def __init__(
        self, hub: Hub, home: Home, ledger: Ledger, probe: Probe, log: Path, clock: Clock
    ) -> None:
        self.hub = hub
        self.home = home
        self.ledger = ledger
        self.probe = probe
        self.clock = clock
        self.launcher = Launcher(hub, home.runs, log, self)
        self.devices: dict[str, Device] = {device.id: device for device in probe.devices()}
        self.began = clock.wall()
        self.ending = False
        self._next = ledger.last_id() + 1
        self._sessions: dict[int, Session] = {}
        self._streams: dict[int, list[int]] = {}
        self._samples: dict[str, Sample] = {}
        self._told: dict[int, str] = {}
        self._effects: list[Callable[[], None]] = []
        self._unwritten: dict[int, Job] = {}
        self._decisions: list[tuple[Job | None, Job]] = []
        self._changed = True
        self._looking = False
        self._closing = False
        self.state = State(ledger.live())
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
        self.ledger.close()

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
        except SubletError as error:
            session.refuse(error)
        except Exception as error:
            # One request must not end the broker for all others.
            traceback.print_exc()
            bug = f"The broker could not deal with that: {error!r}."
            session.refuse(InternalError(bug, f"Please report it; details are in {self.home.log}."))

    def left(self, session: Session) -> None:
        """A client that is gone takes its job with it."""
        job = self.state.get(session.job) if session.job is not None else None
        if job is None or self._sessions.get(job.id) is not session:
            return
        del self._sessions[job.id]
        self._drop_streams(job.id)
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
            self._check(spec)
        except SubletError:
            for number in streams:
                os.close(number)
            raise
        at = self.clock.wall()
        job = Job(self._next, token, spec, at, Waiting(at))
        self._next += 1
        session.job = job.id
        self._sessions[job.id] = session
        self._streams[job.id] = streams
        self._decide(None, Submitted(job))
        self._effects.append(lambda: session.reply(say.Accepted(job.id)))

    def _check(self, spec: JobSpec) -> None:
        """Refuse what can never be done."""
        rooms = self.rooms()
        eligible = admission.eligible(spec.device, rooms)
        if not eligible:
            names = ", ".join(self.devices)
            raise BadRequest(f"There is no device {spec.device!r}.", f"There are: {names}.")
        if spec.cpus is not None and not 1 <= spec.cpus <= len(spec.surroundings.affinity):
            most = len(spec.surroundings.affinity)
            raise BadRequest(
                f"--cpus {spec.cpus}: this command may use {most}.",
                f"Ask for 1 to {most}.",
            )
        job = Job(0, "", spec, 0.0, Waiting(0.0))
        refusals: list[BadRequest] = []
        for room in rooms:
            if room.device.id in eligible:
                overhead = self._overhead(job, room.device)
                try:
                    sizing.check(spec.memory, room.device, admission.most_ever(room, overhead))
                except BadRequest as refusal:
                    refusals.append(refusal)
                else:
                    return
        raise next((r for r in refusals if isinstance(r, TooLarge)), refusals[0])

    def _attach(self, session: Session, number: int, token: str) -> None:
        streams = session.take_streams()
        job = self.state.get(number) or self.ledger.find(number)
        if job is None or not secrets.compare_digest(job.token, token):
            for stream in streams:
                os.close(stream)
            raise BadRequest(f"Job {number} is not yours, or not here.")
        session.job = job.id
        self._told.pop(job.id, None)
        if isinstance(job.state, Finished):
            for stream in streams:
                os.close(stream)
            self._tell_ended(session, job)
            return
        self._drop_streams(job.id)
        self._sessions[job.id] = session
        self._streams[job.id] = streams
        self._changed = True
        match job.state:
            case Starting(lease=lease):
                session.reply(say.Granted(lease, job.attempt))
            case Running(lease=lease, worker=worker, how=how):
                session.reply(say.Granted(lease, job.attempt))
                session.reply(say.Started(worker.pid, how))

    def _signal(self, session: Session, number: int) -> None:
        job = self.state.get(session.job) if session.job is not None else None
        if job is not None and job.lease is not None:
            self.launcher.signal(job.run, number)

    def _down(self, session: Session, stop: bool) -> None:
        snapshot = self.snapshot()
        session.reply(say.Downed(snapshot.leases, snapshot.waiting))
        self._closing = True
        if not stop:
            for client in self._sessions.values():
                client.reply(say.Leaving())
            self.ending = True
            return
        for job in self.state.waiting():
            self._withdraw(job, "`sublet down --stop` came first")
        for job in self.state.holding():
            self._stop(job, "`sublet down --stop`")
        self._end_when_idle()

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
        self._apply(WorkerStarted(job.id, job.attempt, self.clock.wall(), keeper, worker, how))
        self._tell(job.id, say.Started(worker.pid, how))

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
        device = self.devices.get(lease.device)
        told = judge(job, ending, str(self.home.runs / run), self._neighbours(job))
        how = job.state.how if isinstance(job.state, Running) else ""
        at = self.clock.wall()
        if device is not None and ending.status is not None:
            start = "warm" if how == "warm" else "cold"
            self.ledger.remember(job, device.kind, lease.ceiling, told, start, at)
        least = self._second_try(job, lease, device, told)
        self._apply(AttemptEnded(job.id, job.attempt, at, told, least))
        self._samples.pop(run, None)
        if least:
            self._tell(job.id, say.Retried(told, lease, least))
        else:
            self._close_job(job.id)
        self._effects.append(lambda: self.launcher.forget(run))

    def never_ran(self, run: str, why: str) -> None:
        """No line of the program has run: it waits again, and nothing is lost."""
        job = self._of(run)
        if job is None:
            return
        self._apply(NeverRan(job.id, job.attempt, self.clock.wall()))
        self._samples.pop(run, None)
        self._effects.append(lambda: self.launcher.forget(run))
        if self._closing:
            self._withdraw(job, "`sublet down --stop` came first")
        elif job.id not in self._sessions and not _client_lives(job):
            self._withdraw(job, _CLIENT_GONE)

    def nurseries_changed(self) -> None:
        """What could not start may be able to now."""
        self._changed = True

    def _second_try(self, job: Job, lease: Lease, device: Device | None, told: Outcome) -> int:
        """The ceiling for another attempt; 0 if there is to be none."""
        if told.cause != "lease exceeded" or job.spec.on_oom != "grow" or device is None:
            return 0
        if job.id not in self._sessions:
            return 0
        return self._suggest(job, lease, device, told) or 0

    def _suggest(self, job: Job, lease: Lease, device: Device, told: Outcome) -> int | None:
        """A larger ceiling that the device could give; None if it could give none."""
        room = next((room for room in self.rooms() if room.device.id == device.id), None)
        if room is None:
            return None
        most = admission.most_ever(room, self._overhead(job, device)) // MiB * MiB
        wanted = sizing.after_failure(lease.ceiling, told.peak or 0, told.asked)
        chosen = min(wanted, most)
        return chosen if chosen > lease.ceiling else None

    # Deciding.

    def rooms(self) -> tuple[Room, ...]:
        """How full the devices are now."""
        nurseries = [n for n in self.launcher.nurseries.all() if n.state != "off"]
        standing = sum(nursery.holds for nursery in nurseries)
        return fullness.rooms(self.probe.facts(), self.state.holding(), self._samples, standing)

    def plan(self) -> Plan:
        """Who gets a lease now."""
        waiting = self.state.waiting()
        return admission.plan(self.rooms(), tuple(map(self._candidate, waiting)))

    def _settle(self) -> None:
        """After each turn: decide, write down, act."""
        if self._changed:
            self._changed = False
            if self.state.waiting() and not self._closing:
                self._grant(self.plan())
        if self._commit():
            effects, self._effects = self._effects, []
            for effect in effects:
                effect()
        if self.state.waiting() and not self._looking:
            # Strangers come and go without telling us.
            self._looking = True
            self.hub.later(_LOOK_AGAIN, self._look_again)

    def _look_again(self) -> None:
        self._looking = False
        self._changed = True

    def _grant(self, plan: Plan) -> None:
        for grant in plan.grants:
            job = self.state[grant.job]
            cpus = self._processors(job)
            lease = Lease(grant.device, grant.size.ceiling, grant.charge, grant.size.basis, cpus)
            event = Granted(job.id, self.clock.wall(), self.clock.now(), lease)
            self._decide(job, event)
            self._told.pop(job.id, None)
            self._tell(job.id, say.Granted(lease, job.attempt))
            self._effects.append(lambda number=job.id: self._start(number))  # type: ignore[misc]
        for number, reason in plan.reasons.items():
            if self._told.get(number) != reason:
                self._told[number] = reason
                self._tell(number, say.Waits(reason))

    def _candidate(self, job: Job) -> Candidate:
        assert isinstance(job.state, Waiting)
        kinds = {device.kind for device in self.devices.values()}
        return Candidate(
            job=job.id,
            ask=job.spec.memory,
            device=job.spec.device,
            overhead={d.id: self._overhead(job, d) for d in self.devices.values()},
            evidence={kind: self.ledger.evidence(job, kind) for kind in kinds},
            least=job.least,
            held=self._held(job),
        )

    def _held(self, job: Job) -> str:
        """Why a job could not start now, whatever is free; empty if it could.

        A job that can start warm waits for its nursery, which also settles what that one holds.
        """
        if job.id not in self._streams:
            return "its client has not come back yet"
        key = self._key(job)
        if key is None or job.spec.cold:
            return ""
        nursery = self.launcher.nurseries.find(key, text_environment(job))
        loading = "TensorFlow is being loaded, once for all programs"
        return loading if nursery.state == "warming up" else ""

    def _overhead(self, job: Job, device: Device) -> int:
        """What one more process costs on a device, beside its ceiling."""
        if device.kind == "gpu":
            return context_overhead(device.compute, device.capacity)
        start = "cold" if job.spec.cold or not job.spec.program.python else "warm"
        known = self.ledger.evidence(job, "cpu").outside
        if known is None:
            known = self.ledger.usual_outside("cpu", start)
        return _USUAL_OUTSIDE[start] if known is None else sizing.round_up(int(known * 1.1))

    def _processors(self, job: Job) -> tuple[int, ...]:
        """The least used processors, as many as the job asked for; empty if it did not ask."""
        if job.spec.cpus is None:
            return ()
        used = [cpu for other in self.state.holding() if other.lease for cpu in other.lease.cpus]
        mine = sorted(job.spec.surroundings.affinity, key=lambda cpu: (used.count(cpu), cpu))
        return tuple(sorted(mine[: job.spec.cpus]))

    # Acting.

    def _start(self, number: int) -> None:
        job = self.state.get(number)
        if job is None or not isinstance(job.state, Starting):
            return
        lease = job.state.lease
        streams = self._streams.get(number)
        if streams is None:
            # The client left between the grant and here; the attempt was never made.
            self.never_ran(job.run, "its client left")
            return
        try:
            spec = worker_spec(job, lease, self.devices[lease.device], self.home)
            key = self._key(job)
            self.launcher.start(
                run=job.run,
                record=msgspec.json.encode(job),
                spec=spec,
                mark=mark(job),
                streams=streams,
                cold=job.spec.cold,
                key=key,
            )
        except OSError as error:
            self._fail_start(job, error)

    def _fail_start(self, job: Job, error: OSError) -> None:
        told = Outcome("lost", 126, message=f"it could not be started: {error.strerror}")
        self._apply(AttemptEnded(job.id, job.attempt, self.clock.wall(), told))
        self._close_job(job.id)

    @staticmethod
    def _key(job: Job) -> NurseryKey | None:
        python = job.spec.program.python
        if not python:
            return None
        return NurseryKey.of(os.fsdecode(python), text_environment(job))

    def _stop(self, job: Job, why: str) -> None:
        if isinstance(job.state, Running):
            self._apply(StopAsked(job.id, why))
        self.launcher.stop(job.run, why)

    def _withdraw(self, job: Job, why: str) -> None:
        """A job that holds nothing is not wanted any more."""
        told = Outcome("stopped", 143, message=why)
        self._apply(Withdrawn(job.id, self.clock.wall(), told))
        self._close_job(job.id)

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
            if now is not None and isinstance(now.state, Waiting) and job.id not in self._sessions:
                self._withdraw(job, _CLIENT_GONE)

        self.hub.watch(descriptor, gone)

    # Writing down.

    def _apply(self, event: Event) -> None:
        """Take in something that has happened: it stays true even if it cannot be written yet."""
        job = self.state.apply(event)
        if job is not None:
            self._unwritten[job.id] = job
        self._changed = True

    def _decide(self, before: Job | None, event: Event) -> None:
        """Take in a decision of ours: it is undone if it cannot be written."""
        after = self.state.apply(event)
        assert after is not None
        self._decisions.append((before, after))
        self._unwritten[after.id] = after
        self._changed = self._changed or before is None

    def _commit(self) -> bool:
        """Write down all that is new; False if the disk would not have it."""
        if not self._unwritten:
            return True
        try:
            for job in self._unwritten.values():
                self.ledger.save(job)
            self.ledger.commit()
        except sqlite3.Error as error:
            self.ledger.rollback()
            self._undo(error)
            self.hub.later(_RETRY_COMMIT, self._look_again)
            return False
        self._unwritten.clear()
        self._decisions.clear()
        return True

    def _undo(self, error: sqlite3.Error) -> None:
        """Take back what was decided in this turn; nothing has been done about it yet."""
        refusal = WorldError(
            f"The ledger cannot be written: {error}.",
            f"Free some space for {self.home.path}; nothing was started.",
        )
        decisions, self._decisions = self._decisions, []
        self._effects.clear()
        for before, after in reversed(decisions):
            self.state.apply(Undone(after.id, before))
            self._unwritten.pop(after.id, None)
            if before is None:
                session = self._sessions.pop(after.id)
                session.job = None
                self._drop_streams(after.id)
                session.refuse(refusal)
            else:
                self._told.pop(after.id, None)

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

    def _tell(self, number: int, message: say.Reply) -> None:
        self._effects.append(lambda: self._tell_now(number, message))

    def _tell_now(self, number: int, message: say.Reply) -> None:
        session = self._sessions.get(number)
        if session is not None:
            session.reply(message)

    def _close_job(self, number: int) -> None:
        """The job has finished: say so and let its streams go."""
        job = self._unwritten[number]
        self._told.pop(number, None)
        self._drop_streams(number)
        session = self._sessions.pop(number, None)
        if session is not None:
            self._effects.append(lambda: self._tell_ended(session, job))

    def _tell_ended(self, session: Session, job: Job) -> None:
        assert isinstance(job.state, Finished)
        told, lease = job.state.outcome, job.state.lease
        suggest = None
        if told.cause == "lease exceeded" and lease is not None and lease.device in self.devices:
            suggest = self._suggest(job, lease, self.devices[lease.device], told)
        session.reply(say.Ended(job.id, told, lease, job.state.how, job.attempt, suggest))

    def _neighbours(self, job: Job) -> tuple[Tenant, ...]:
        """Who else held memory on the job's device, for the story of its end."""
        assert job.lease is not None
        room = next((r for r in self.rooms() if r.device.id == job.lease.device), None)
        if room is None:
            return ()
        return tuple(tenant for tenant in room.tenants if tenant.job != job.id)

    def _of(self, run: str) -> Job | None:
        """The live job whose current attempt this is; late news of an old one is no news."""
        number = int(run.partition(".")[0])
        job = self.state.get(number)
        return job if job is not None and job.run == run else None

    def _drop_streams(self, number: int) -> None:
        for stream in self._streams.pop(number, ()):
            os.close(stream)


def _client_lives(job: Job) -> bool:
    return tree.is_alive(job.spec.client.pid, job.spec.client.start)
