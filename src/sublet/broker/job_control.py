"""What is done to single jobs (stop, pause, withdraw, close), and the end of the broker."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from sublet.backends.backend import ENDING_SIGNALS, Backend
from sublet.broker import job_clients
from sublet.broker.connections import ClientConnection
from sublet.broker.device_usage import DeviceUsage
from sublet.broker.events import Held, Released, StopAsked, Withdrawn
from sublet.broker.job_clients import JobClients
from sublet.broker.nested_leases import NestedLeases
from sublet.broker.size_estimates import SizeEstimator
from sublet.broker.unit_of_work import UnitOfWork
from sublet.clock import Clock
from sublet.domain.job import Cause, Finished, Job, Outcome, Waiting
from sublet.reactor import Reactor
from sublet.wire import messages

_DOWN = "`sublet down --stop`"
DOWN_CAME_FIRST = f"{_DOWN} came first"
_COMES_BACK = 10.0
"""Seconds in which a process that waits for a lease of its own finds the next broker."""


@dataclass(eq=False)
class JobControl:
    """Applies what was decided about one job, and asks the backend for it.

    `_on_end` are called with each job that has finished.
    """

    _work: UnitOfWork
    _backend: Backend
    _clients: JobClients
    _nested_leases: NestedLeases
    _usage: DeviceUsage
    _estimator: SizeEstimator
    _clock: Clock
    _reactor: Reactor
    _on_end: tuple[Callable[[Job], None], ...]

    def __post_init__(self) -> None:
        self.closing = False
        """Whether nothing new is accepted or granted any more."""
        self.ending = False
        """Whether the broker's loop is to end."""
        self._interrupted: set[str] = set()
        """The ids of attempts that their users have asked to end."""

    def stop(self, job: Job, why: str) -> None:
        """Ask a job's tree to end; its lease ends when the exit is seen."""
        self._work.happened(StopAsked(job.id, why))
        self._backend.stop(job.attempt_id, why, job.spec.grace)

    def end_nurseries(self, pids: Iterable[int]) -> None:
        """End idle nurseries: a job needs the memory that they hold."""
        for pid in pids:
            self._backend.end_nursery(pid)

    def pause(self, job: Job) -> None:
        """Let a job stand still: its tree, or its place in the queue."""
        self._work.happened(Held(job.id, self._clock.wall()))
        if job.holds is not None:
            self._backend.pause(job.attempt_id)

    def resume(self, job: Job) -> None:
        """Let a paused job go on."""
        self._work.happened(Released(job.id, self._clock.wall(), self._clock.now()))
        if job.holds is not None:
            self._usage.forget_pace(job.attempt_id)
            self._backend.resume(job.attempt_id)

    def signal(self, job: Job, number: int) -> None:
        """Pass a signal of its user on to the program."""
        if number in ENDING_SIGNALS:
            self._interrupted.add(job.attempt_id)
        self._backend.signal(job.attempt_id, number)

    def abandon_start(self, job: Job) -> None:
        """Its user wants it to end before its program has begun."""
        self._interrupted.add(job.attempt_id)
        self._backend.abandon(job.attempt_id, "interrupted by its user")

    def take_interrupted(self, attempt_id: str) -> bool:
        """Whether its user has asked this attempt to end; it is over, so this is forgotten."""
        interrupted = attempt_id in self._interrupted
        self._interrupted.discard(attempt_id)
        return interrupted

    def withdraw(self, job: Job, why: str, cause: Cause = "stopped", code: int = 143) -> None:
        """A job that holds nothing is not wanted any more."""
        outcome = Outcome(cause, code, message=why)
        self.close_job(self._work.happened(Withdrawn(job.id, self._clock.wall(), outcome)))

    def end_inner(self, outer: Job) -> None:
        """End the jobs whose leases came out of this one's: it has ended."""
        why = f"#{outer.id}, out of whose lease its own came, has ended"
        for job in self._work.state.within(outer.id):
            if job.holds is not None:
                self.stop(job, why)
            else:
                self.withdraw(job, why)

    def close_job(self, job: Job) -> None:
        """The job has finished: let its streams go, then tell its client."""
        for note in self._on_end:
            note(job)
        self._nested_leases.settle(job.spec.within)
        connection = self._clients.part(job.id)
        if connection is not None:
            self.send_ended(connection, job)

    def send_ended(self, connection: ClientConnection, job: Job) -> None:
        """Tell this client how a finished job has ended."""
        assert isinstance(job.state, Finished)
        outcome, lease = job.state.outcome, job.state.lease
        suggested = self._estimator.suggest(job, lease, outcome, self._usage.capacities)
        connection.reply(
            messages.Ended(job.id, outcome, lease, job.state.how, job.attempt, suggested)
        )

    def await_client(self, job: Job) -> None:
        """Withdraw a job that waits if its client, which has not come back yet, ends."""
        assert job.spec.client is not None
        drop = partial(self._drop_without_client, job)
        if job.spec.in_process is not None:
            # A process goes on when it has given up waiting, so it is known by not coming back.
            self._reactor.call_later(_COMES_BACK, drop)
            return
        descriptor = os.pidfd_open(job.spec.client.pid)

        def gone() -> None:
            self._reactor.unwatch(descriptor)
            os.close(descriptor)
            drop()

        self._reactor.watch(descriptor, gone)

    def _drop_without_client(self, job: Job) -> None:
        now = self._work.state.get(job.id)
        if now is not None and isinstance(now.state, Waiting) and job.id not in self._clients:
            self.withdraw(job, job_clients.GONE)

    def shut_down(self, stop: bool) -> None:
        """End the broker; programs go on unless they are to be stopped, and the queue stays in the
        ledger. In-process leases go on in any case: they are somebody's notebook."""
        self.closing = True
        if not stop:
            self._clients.broadcast(messages.Leaving())
            self.ending = True
            return
        for job in self._work.state.jobs():
            if job.holds is not None:
                if job.spec.in_process is None:
                    self.stop(job, _DOWN)
            elif job.spec.client is not None:
                self.withdraw(job, DOWN_CAME_FIRST)
        self._end_when_idle()

    def _end_when_idle(self) -> None:
        if any(job.spec.in_process is None for job in self._work.state.holding()):
            self._reactor.call_later(0.05, self._end_when_idle)
        else:
            self.ending = True
