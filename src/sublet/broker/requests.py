"""What clients want, put to the broker; a refusal changes nothing."""

import secrets
import sqlite3
from signal import SIGCONT, SIGTSTP
from typing import TYPE_CHECKING

import msgspec

from sublet.backends.local.launcher import ENDS
from sublet.broker import job_limits
from sublet.broker.connections import ClientConnection
from sublet.broker.events import Submitted
from sublet.broker.job_actions import JobActions
from sublet.broker.job_clients import GONE, close
from sublet.broker.worker_spec import mark
from sublet.domain.history import Forecast
from sublet.domain.job import Finished, Job, JobSpec, Running, Starting, Task, Waiting
from sublet.errors import BadRequest, SubletError, WorldError
from sublet.keeper import process_tree
from sublet.text import plain
from sublet.wire import messages

if TYPE_CHECKING:
    from sublet.broker.broker import Broker

_SEE_TO_DISK = "See to its disk, then try again."
MOST_TASKS = 100_000
"""The largest array."""


class Requests:
    """The broker's ear for clients."""

    def __init__(self, broker: "Broker") -> None:
        self.broker = broker
        self._actions = JobActions(broker)

    def handle(self, connection: ClientConnection, request: messages.Request) -> None:
        """Deal with one request: all of it, or nothing if it is refused."""
        try:
            with self.broker.work.unit():
                self._deal(connection, request)
        except SubletError as error:
            connection.refuse(error)
        except sqlite3.Error as error:
            connection.refuse(WorldError(f"The ledger cannot be read: {error}.", _SEE_TO_DISK))

    def _deal(self, connection: ClientConnection, request: messages.Request) -> None:
        broker = self.broker
        match request:
            case messages.Run(token=token) | messages.LeaseInProcess(token=token) if (
                twin := self._twin(token)
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
            case messages.Signal(number=number, early=True):
                self._give_up_start(connection)
            case messages.Signal(number=number):
                self._signal(connection, number)
            case messages.AskStatus():
                connection.reply(broker.snapshots.snapshot())
            case messages.AskJobs(jobs=numbers, live=live, finished=finished):
                connection.reply(broker.snapshots.rows(numbers, live, finished))
            case messages.Watch(jobs=numbers):
                connection.reply(broker.snapshots.rows(numbers, 0, 0))
                broker.subscriptions.watch(connection, numbers)
            case messages.AskExplain(job=number):
                connection.reply(self._explain(broker.job(number)))
            case messages.KeepForecast(spec=spec, forecast=forecast):
                self._keep_forecast(connection, spec, forecast)
            case messages.Act(verb=verb, jobs=numbers, environ=environ):
                done = messages.Done(self._actions.perform(verb, numbers, environ))
                broker.work.answer(
                    lambda: connection.reply(done),
                    lambda error: connection.refuse(self._unwritten(done, error)),
                )
            case messages.Down(stop=stop):
                broker.down(connection, stop)

    def _unwritten(self, done: messages.Done, error: sqlite3.Error) -> WorldError:
        """The verb was obeyed all the same: it may be the way to have some space again."""
        return WorldError(
            f"{'; '.join(done.said)}. But the ledger cannot be written: {error}.",
            f"Free some space for {self.broker.home.path}: a broker that ends before it is written "
            "takes it for not done.",
        )

    def disconnected(self, connection: ClientConnection) -> None:
        """A client that is gone takes its job with it, unless it has taken its lease itself."""
        self.broker.subscriptions.leave(connection)
        with self.broker.work.unit():
            self._leave(connection)

    def _leave(self, connection: ClientConnection) -> None:
        broker = self.broker
        number = broker.clients.speaks_for(connection)
        job = broker.state.get(number) if number is not None else None
        if job is None:
            return
        broker.clients.part(job.id)
        if job.spec.in_process is not None:
            broker.in_process_leases.settle(job.attempt_id)
            now = broker.state.get(job.id)
            if now is not None and now.holds is None:
                broker.withdraw(now, "it waits no longer")
        elif job.holds is None:
            broker.withdraw(job, GONE)
        else:
            broker.stop(job, "its client ended")

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
            spec = self._within(spec, request.under)
            self._check(spec)
        except SubletError:
            close(streams)
            raise
        self._accept(connection, spec, request.token, streams)

    def _submit(self, connection: ClientConnection, request: messages.Submit) -> None:
        twin = self._twin(request.token)
        if twin is not None:
            # The first of an array may be gone from the live ones.
            first = twin.spec.task.array if twin.spec.task else twin.id
            count = max(1, len(request.indexes))
            connection.reply(messages.Queued(tuple(range(first, first + count))))
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
        self._check(spec)
        jobs = []
        first = self.broker.next_id
        for index in request.indexes or (None,):
            task = None if index is None else Task(first, index, request.at_once)
            name = spec.name if index is None else f"{spec.name}[{index}]"
            jobs.append(
                self._new(msgspec.structs.replace(spec, name=name, task=task), request.token)
            )
        for job in jobs[:-1]:
            self.broker.work.decided(None, Submitted(job))
        queued = messages.Queued(tuple(job.id for job in jobs))
        self.broker.work.decided(
            None, Submitted(jobs[-1]), lambda: self._reply_queued(jobs[-1].id, queued)
        )
        self.broker.submitters[jobs[-1].id] = connection

    def _lease_in_process(self, connection: ClientConnection, spec: JobSpec, token: str) -> None:
        in_process = spec.in_process
        if in_process is None or spec.task is not None or connection.job is not None:
            raise BadRequest("A process asks for a lease of its own, once in a connection.")
        if not process_tree.is_alive(in_process.pid, in_process.start):
            raise BadRequest(
                f"The broker does not see the process {in_process.pid}.",
                "Both must run in the same container.",
            )
        spec = self._within(spec, None)
        self._check(spec)
        self._accept(connection, spec, token, [])

    def _accept(
        self, connection: ClientConnection, spec: JobSpec, token: str, streams: list[int]
    ) -> None:
        job = self._new(spec, token)
        self.broker.work.decided(
            None, Submitted(job), lambda: connection.reply(messages.Accepted(job.id))
        )
        self.broker.clients.join(job.id, connection, streams)

    def _give_back(self, connection: ClientConnection, number: int, token: str) -> None:
        job = self.broker.state.get(number)
        if job is not None and secrets.compare_digest(job.token, token) and job.spec.in_process:
            self.broker.in_process_leases.settle(job.attempt_id)
        connection.reply(messages.Done(()))

    @staticmethod
    def _check_program(spec: JobSpec) -> None:
        if spec.program.kind == "process":
            raise BadRequest("There is no program to start.", "Call `sublet.lease` in the process.")

    def _twin(self, token: str) -> Job | None:
        """The job of the same request, sent before: to us, or to a broker that died over it."""
        return self.broker.state.with_token(token) or self.broker.work.ledger.with_token(token)

    def _reply_queued(self, last: int, queued: messages.Queued) -> None:
        connection = self.broker.submitters.pop(last, None)
        if connection is not None:
            connection.reply(queued)

    def _check(self, spec: JobSpec) -> None:
        if self.broker.closing:
            raise BadRequest("The broker is ending.", "Try again in a moment.")
        job_limits.check(spec)
        outer = () if spec.within is None else (spec.within,)
        self.broker.estimator.check(spec, self.broker.capacities(*outer))
        self.broker.dependencies.check(spec, self.broker.next_id)

    def _within(self, spec: JobSpec, under: messages.Under | None) -> JobSpec:
        """With the lease out of which its own comes: the one that its client runs under, if that is
        on the device it asks for. It then has the same class, or a program could leave its own."""
        outer = self.broker.state.get(under.job) if under is not None else None
        device = self.broker.devices.get(outer.lease.device) if outer and outer.lease else None
        if under is None or outer is None or device is None:
            # An outer lease that has ended has nothing to give.
            return msgspec.structs.replace(spec, within=None)
        if not secrets.compare_digest(mark(outer), under.token):
            raise BadRequest(
                f"This program does not run under the lease of job {under.job}.",
                "Unset SUBLET_LEASE: it is of another program.",
            )
        if spec.device is not None and not device.goes_by(spec.device):
            return msgspec.structs.replace(spec, within=None)
        return msgspec.structs.replace(
            spec, within=outer.id, priority=outer.spec.priority, service=outer.spec.service
        )

    def _new(self, spec: JobSpec, token: str) -> Job:
        at = self.broker.clock.wall()
        # It gets into many lines: it must not make up lines of its own.
        spec = msgspec.structs.replace(spec, name=plain(spec.name))
        job = Job(self.broker.next_id, token, spec, at, Waiting(at, self.broker.clock.now()))
        self.broker.next_id += 1
        return self.broker.work.ledger.common.share(job)

    def _attach(self, connection: ClientConnection, number: int, token: str) -> None:
        streams = connection.take_streams()
        broker = self.broker
        job = broker.work.find(number)
        if job is None or not secrets.compare_digest(job.token, token):
            close(streams)
            raise BadRequest(f"Job {number} is not yours, or not here.")
        if isinstance(job.state, Finished):
            close(streams)
            broker.send_ended(connection, job)
            return
        broker.clients.join(job.id, connection, streams)
        broker.plan_again(job.id)
        if (held := job.holds) is not None:
            connection.reply(messages.Granted(held.lease, job.attempt))
            if isinstance(held, Running):
                connection.reply(messages.Started(held.worker.pid, held.how))

    def _give_up_start(self, connection: ClientConnection) -> None:
        number = self.broker.clients.speaks_for(connection)
        job = self.broker.state.get(number) if number is not None else None
        if job is not None and isinstance(job.holds, Starting):
            self.broker.interrupted.add(job.attempt_id)
            self.broker.launcher.give_up(job.attempt_id, "its user ended it")

    def _signal(self, connection: ClientConnection, signal: int) -> None:
        number = self.broker.clients.speaks_for(connection)
        job = self.broker.state.get(number) if number is not None else None
        if job is not None and job.holds is not None:
            if signal in ENDS:
                self.broker.interrupted.add(job.attempt_id)
            self.broker.launcher.signal(job.attempt_id, signal)
        elif job is not None and signal in (SIGTSTP, SIGCONT):
            self.broker.clients.stop(job.id, signal == SIGTSTP)
            self.broker.plan_again(job.id)

    def _explain(self, job: Job) -> messages.Explained:
        told = self.broker.estimator.explain(job, self.broker.capacities())
        if isinstance(job.state, Waiting) and job.id in self.broker.state:
            told = msgspec.structs.replace(told, waits=self.broker.snapshots.row(job.id).reason)
        return messages.Explained(told)

    def _keep_forecast(
        self, connection: ClientConnection, spec: JobSpec, forecast: Forecast
    ) -> None:
        ledger, clock = self.broker.work.ledger, self.broker.clock
        job_limits.check(spec)
        job_limits.check_forecast(forecast)
        try:
            self.broker.estimator.keep_forecast(spec, forecast)
            ledger.commit()
        except sqlite3.Error as error:
            ledger.rollback()
            hint = f"Free some space for {self.broker.home.path}; the probe's result is lost."
            raise WorldError(f"The ledger cannot be written: {error}.", hint) from error
        connection.reply(self._explain(Job(0, "", spec, clock.wall(), Waiting(clock.wall()))))
