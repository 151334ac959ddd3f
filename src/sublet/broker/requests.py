"""What clients ask for, checked and passed on; a refused request changes nothing."""

import secrets
import sqlite3
from dataclasses import dataclass
from signal import SIGCONT, SIGTSTP

import msgspec

from sublet.backends.backend import Backend
from sublet.broker import job_limits
from sublet.broker.connections import ClientConnection
from sublet.broker.dependencies import Dependencies
from sublet.broker.device_usage import DeviceUsage
from sublet.broker.dry_runs import DryRuns
from sublet.broker.effects import Answer, Confirmation, ConfirmQueued
from sublet.broker.events import Submitted
from sublet.broker.job_actions import JobActions
from sublet.broker.job_clients import GONE, JobClients
from sublet.broker.job_control import JobControl
from sublet.broker.size_estimates import SizeEstimator
from sublet.broker.snapshot_feed import SnapshotFeed
from sublet.broker.snapshots import Snapshots
from sublet.broker.subscriptions import Subscriptions
from sublet.broker.unit_of_work import UnitOfWork
from sublet.broker.usage_recorder import UsageRecorder
from sublet.broker.verdict import read_event_logs
from sublet.broker.visible_devices import with_wish
from sublet.clock import Clock
from sublet.domain.history import Forecast
from sublet.domain.job import (
    EventLog,
    Finished,
    Gang,
    Job,
    JobSpec,
    Running,
    Starting,
    Task,
    Waiting,
)
from sublet.errors import BadRequest, SubletError, WorldError
from sublet.formats import packets
from sublet.home import Home
from sublet.keeper import process_tree
from sublet.wire import messages

_SEE_TO_DISK = "See to its disk, then try again."
MOST_TASKS = 100_000
"""Jobs in the largest array."""


@dataclass(eq=False)
class Requests:
    """Handles what clients ask for; implements `connections.RequestHandler`."""

    _work: UnitOfWork
    _control: JobControl
    _clients: JobClients
    _usage: DeviceUsage
    _estimator: SizeEstimator
    _dependencies: Dependencies
    _snapshots: Snapshots
    _subscriptions: Subscriptions
    _feed: SnapshotFeed
    _dry_runs: DryRuns
    _recorder: UsageRecorder
    _backend: Backend
    _clock: Clock
    _home: Home

    def __post_init__(self) -> None:
        self._actions = JobActions(self._work, self._control, self._dependencies, self._clock)

    def handle(self, connection: ClientConnection, request: messages.Request) -> None:
        """Deal with one request: all of it, or nothing if it is refused."""
        try:
            with self._work.atomic():
                self._handle(connection, request)
        except SubletError as error:
            connection.refuse(error)
        except sqlite3.Error as error:
            connection.refuse(WorldError(f"The ledger cannot be read: {error}.", _SEE_TO_DISK))

    def _handle(self, connection: ClientConnection, request: messages.Request) -> None:
        match request:
            case messages.Run(token=token) | messages.LeaseInProcess(token=token) if twin := (
                self._twin(token)
            ):
                connection.reply(messages.Accepted(twin.id))
                self._attach(connection, twin.id, token)
            case messages.Run():
                self._run(connection, request)
            case messages.Submit():
                self._submit(connection, request)
            case messages.LeaseInProcess(spec=spec, token=token):
                self._lease_in_process(connection, spec, token)
            case messages.GiveBack(job=number, token=token):
                self._give_back(connection, number, token)
            case messages.Attach(job=number, token=token):
                self._attach(connection, number, token)
            case messages.Signal():
                self._signal(connection, request)
            case messages.AskStatus():
                connection.reply(self._snapshots.snapshot())
            case messages.AskJobs(jobs=numbers, live=live, finished=finished):
                connection.reply(self._snapshots.rows(numbers, live, finished))
            case messages.Watch(jobs=numbers):
                connection.reply(self._snapshots.rows(numbers, 0, 0))
                self._subscriptions.watch(connection, numbers)
            case messages.Subscribe():
                self._feed.subscribe(connection)
            case messages.AskExplain(job=number):
                connection.reply(self._explain(self._work.job(number)))
            case messages.AskStart(spec=spec):
                self._would_start(connection, spec)
            case messages.AskMetrics():
                connection.reply(self._snapshots.metrics(self._work.counters.counts))
            case messages.AskUsageHistory(since=since):
                connection.reply(self._recorder.answer(since))
            case messages.KeepForecast(spec=spec, forecast=forecast):
                self._keep_forecast(connection, spec, forecast)
            case messages.JobAction(verb=verb, jobs=numbers, environ=environ):
                done = messages.Done(self._actions.perform(verb, numbers, environ))
                self._work.confirm(Confirmation(connection, done))
            case messages.Down(stop=stop):
                now = self._snapshots.snapshot()
                connection.reply(messages.Downed(now.leases, now.waiting, now.waits))
                self._control.shut_down(stop)

    def disconnected(self, connection: ClientConnection) -> None:
        """A client that is gone takes its job with it, unless it has taken its lease itself."""
        self._subscriptions.leave(connection)
        self._feed.leave(connection)
        with self._work.atomic():
            self._leave(connection)

    def _leave(self, connection: ClientConnection) -> None:
        job = self._job_of(connection)
        if job is None:
            return
        self._clients.part(job.id)
        if job.spec.in_process is not None:
            self._backend.check_offer(job.attempt_id)
            now = self._work.state.get(job.id)
            if now is not None and now.holds is None:
                self._control.withdraw(now, "it waits no longer")
        elif job.holds is None:
            self._control.withdraw(job, GONE)
        else:
            self._control.stop(job, "its client ended")

    def _job_of(self, connection: ClientConnection) -> Job | None:
        """The live job that this connection speaks for."""
        number = self._clients.speaks_for(connection)
        return self._work.state.get(number) if number is not None else None

    def _run(self, connection: ClientConnection, request: messages.Run) -> None:
        spec, streams = request.spec, connection.take_streams()
        try:
            if len(streams) not in (3, 4):
                raise BadRequest(
                    f"A program needs three streams, and may have a channel; {len(streams)} came."
                )
            if connection.job is not None:
                raise BadRequest("This connection has a job already.")
            if spec.client is None or spec.task is not None:
                raise BadRequest("A program in the foreground needs a client.")
            self._check_program(spec)
            spec = self._wish(self._within(spec, request.under))
            self._check(spec)
        except SubletError:
            packets.close(streams)
            raise
        self._accept(connection, spec, request.token, streams)

    def _submit(self, connection: ClientConnection, request: messages.Submit) -> None:
        twin = self._twin(request.token)
        if twin is not None:
            # The first of an array may be gone from the live ones.
            first = twin.spec.task.array if twin.spec.task else twin.id
            numbers = range(first, first + max(1, len(request.indexes)))
            if twin.spec.gang is not None:
                numbers = twin.spec.gang.numbers
            connection.reply(messages.Queued(tuple(numbers)))
            return
        spec = request.spec
        if spec.client is not None or spec.task is not None or spec.within is not None:
            raise BadRequest("A job that is submitted has no client.")
        self._check_program(spec)
        if len(request.indexes) > MOST_TASKS:
            raise BadRequest(
                f"An array of {len(request.indexes)} jobs is too large.",
                f"At most {MOST_TASKS} at once.",
            )
        if request.arguments and len(request.arguments) != len(request.indexes):
            raise BadRequest("An array has arguments for each of its jobs, or for none.")
        spec = self._wish(spec)
        self._check(spec)
        jobs = self._gang(spec, request) if request.roles else self._array(spec, request)
        for job in jobs[:-1]:
            self._work.decided(None, Submitted(job))
        queued = messages.Queued(tuple(job.id for job in jobs))
        self._work.decided(None, Submitted(jobs[-1]), ConfirmQueued(queued))
        self._clients.submitted(jobs[-1].id, connection)

    def _array(self, spec: JobSpec, request: messages.Submit) -> list[Job]:
        """One job for each index, or a single one."""
        jobs, first = [], self._work.next_id
        for place, index in enumerate(request.indexes or (None,)):
            task = None if index is None else Task(first, index, request.at_once)
            name = spec.name if index is None else f"{spec.name}[{index}]"
            program = spec.program
            if request.arguments:
                program = msgspec.structs.replace(program, args=request.arguments[place])
            one = msgspec.structs.replace(spec, name=name, task=task, program=program)
            jobs.append(self._new(one, request.token))
        return jobs

    def _gang(self, spec: JobSpec, request: messages.Submit) -> list[Job]:
        """One job for each task of a cluster, if there could ever be room for all of them."""
        job_limits.check_gang(spec, request.roles, request.owner, request.stall)
        if request.indexes:
            raise BadRequest("A cluster cannot be an array.", "Submit one for each index.")
        gang = Gang(self._work.next_id, request.roles, 0, request.owner, request.stall)
        specs = []
        for at, (role, index) in enumerate(gang.tasks):
            name, own = f"{spec.name}[{role} {index}]", msgspec.structs.replace(gang, at=at)
            one = msgspec.structs.replace(spec, name=name, gang=own, spread=True)
            if role == "ps":  # It keeps variables, and computes next to nothing.
                one = msgspec.structs.replace(one, device="cpu", wished=False, gpus=None)
            specs.append(one)
        capacities = self._usage.capacities()
        self._estimator.check_gang(specs, capacities)
        return [self._new(one, request.token) for one in specs]

    def _lease_in_process(self, connection: ClientConnection, spec: JobSpec, token: str) -> None:
        in_process = spec.in_process
        if in_process is None or spec.task is not None or connection.job is not None:
            raise BadRequest("A process asks for a lease of its own, once in a connection.")
        if not process_tree.is_alive(in_process.pid, in_process.start):
            raise BadRequest(
                f"The broker does not see the process {in_process.pid}.",
                "Both must run in the same container.",
            )
        spec = self._wish(self._within(spec, None))
        self._check(spec)
        self._accept(connection, spec, token, [])

    def _accept(
        self, connection: ClientConnection, spec: JobSpec, token: str, streams: list[int]
    ) -> None:
        job = self._new(spec, token)
        accepted = Answer(connection, messages.Accepted(job.id))
        self._work.decided(None, Submitted(job), accepted)
        self._clients.join(job.id, connection, streams)

    def _give_back(self, connection: ClientConnection, number: int, token: str) -> None:
        job = self._work.state.get(number)
        if job is not None and secrets.compare_digest(job.token, token) and job.spec.in_process:
            self._backend.check_offer(job.attempt_id)
        connection.reply(messages.Done(()))

    @staticmethod
    def _check_program(spec: JobSpec) -> None:
        if spec.program.kind == "process":
            raise BadRequest("There is no program to start.", "Call `sublet.lease` in the process.")

    def _twin(self, token: str) -> Job | None:
        """The job of the same request, if it was sent before: to us, or to a broker that died."""
        return self._work.state.with_token(token) or self._work.ledger.with_token(token)

    def _check(self, spec: JobSpec) -> None:
        if self._control.closing:
            raise BadRequest("The broker is ending.", "Try again in a moment.")
        job_limits.check(spec)
        outer = () if spec.within is None else (spec.within,)
        self._estimator.check(spec, self._usage.capacities(*outer))
        self._dependencies.check(spec, self._work.next_id)

    def _within(self, spec: JobSpec, under: messages.Under | None) -> JobSpec:
        """The spec with the job out of whose lease its own comes: the one its client runs under, if
        that is on the device it asks for. It then has the same class of service and priority, or a
        program could leave its own."""
        outer = self._work.state.get(under.job) if under is not None else None
        device = self._usage.devices.get(outer.lease.device) if outer and outer.lease else None
        if under is None or outer is None or device is None or spec.on:
            # An outer lease that has ended has nothing to give.
            return msgspec.structs.replace(spec, within=None)
        if not secrets.compare_digest(outer.lease_token, under.token):
            raise BadRequest(
                f"This program does not run under the lease of job {under.job}.",
                "Unset SUBLET_LEASE: it is of another program.",
            )
        elsewhere = spec.gpus is not None and (spec.gpus > 1 or device.kind != "gpu")
        if elsewhere or (spec.device is not None and not device.goes_by(spec.device)):
            return msgspec.structs.replace(spec, within=None)
        return msgspec.structs.replace(
            spec, within=outer.id, priority=outer.spec.priority, service=outer.spec.service
        )

    def _wish(self, spec: JobSpec) -> JobSpec:
        return with_wish(spec, self._usage.devices, self._estimator.left_out)

    def _new(self, spec: JobSpec, token: str) -> Job:
        return self._work.new_job(spec, token, self._clock.wall(), self._clock.now())

    def _attach(self, connection: ClientConnection, number: int, token: str) -> None:
        streams = connection.take_streams()
        job = self._work.find(number)
        if job is None or not secrets.compare_digest(job.token, token):
            packets.close(streams)
            raise BadRequest(f"Job {number} is not yours, or not here.")
        if isinstance(job.state, Finished):
            packets.close(streams)
            self._control.send_ended(connection, job)
            return
        self._clients.join(job.id, connection, streams)
        self._work.touch(job.id)
        if (held := job.holds) is not None:
            connection.reply(messages.Granted(held.lease, job.attempt))
            if isinstance(held, Running):
                connection.reply(messages.Started(held.worker.pid, held.how))

    def _signal(self, connection: ClientConnection, request: messages.Signal) -> None:
        job = self._job_of(connection)
        if job is None:
            return
        if request.early:
            if isinstance(job.holds, Starting):
                self._control.abandon_start(job)
        elif job.holds is not None:
            self._control.signal(job, request.number)
        elif request.number in (SIGTSTP, SIGCONT):
            self._clients.stop(job.id, request.number == SIGTSTP)
            self._work.touch(job.id)

    def _would_start(self, connection: ClientConnection, spec: JobSpec) -> None:
        self._check_program(spec)
        spec = self._wish(msgspec.structs.replace(spec, within=None))
        self._check(spec)
        connection.reply(self._dry_runs.plan(spec))

    def _explain(self, job: Job) -> messages.Explained:
        explanation = self._estimator.explain(job, self._usage.capacities())
        if isinstance(job.state, Waiting) and job.id in self._work.state:
            explanation = msgspec.structs.replace(
                explanation, waits=self._snapshots.row(job.id).reason
            )
        return messages.Explained(explanation, self._event_logs(job))

    def _event_logs(self, job: Job) -> tuple[EventLog, ...]:
        if isinstance(job.state, Finished):
            return job.state.outcome.event_logs
        if job.holds is None:
            return ()
        return read_event_logs(str(self._home.runs / job.attempt_id))

    def _keep_forecast(
        self, connection: ClientConnection, spec: JobSpec, forecast: Forecast
    ) -> None:
        ledger, clock = self._work.ledger, self._clock
        job_limits.check(spec)
        job_limits.check_forecast(forecast)
        try:
            self._estimator.keep_forecast(spec, forecast)
            ledger.commit()
        except sqlite3.Error as error:
            ledger.rollback()
            hint = f"Free some space for {self._home.path}; the probe's result is lost."
            raise WorldError(f"The ledger cannot be written: {error}.", hint) from error
        connection.reply(self._explain(Job(0, "", spec, clock.wall(), Waiting(clock.wall()))))
