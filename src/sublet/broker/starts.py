"""From a committed grant to the backend, and the pauses after starts that failed."""

from dataclasses import dataclass
from typing import NamedTuple

from sublet.backends.backend import Backend, LaunchFailed, Step
from sublet.broker import log
from sublet.broker.attempts import Attempts
from sublet.broker.device_usage import DeviceUsage
from sublet.broker.events import Postponed
from sublet.broker.job_clients import JobClients
from sublet.broker.nested_leases import NestedLeases
from sublet.broker.ports import Ports
from sublet.broker.unit_of_work import UnitOfWork
from sublet.clock import Clock
from sublet.domain.job import Job, Starting
from sublet.policy.growth import spare_main_memory
from sublet.policy.wait_queue import WaitQueue
from sublet.reactor import Reactor
from sublet.units import format_seconds
from sublet.wire import messages

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0


class Setback(NamedTuple):
    """A step of starting that the machine does not let us do for any job: why, until when we do not
    try again, and for how many seconds that is."""

    why: str
    until: float
    pause: float


@dataclass(eq=False)
class Starts:
    """Launches attempts whose leases are in the ledger.

    A step that fails here is the machine's fault: no directory, no space, no descriptors, no more
    processes. All jobs that need that step wait, with pauses that grow. A fault of the job itself
    is seen by its keeper, and ends it.
    """

    _work: UnitOfWork
    _backend: Backend
    _attempts: Attempts
    _clients: JobClients
    _usage: DeviceUsage
    _nested_leases: NestedLeases
    _ports: Ports
    _clock: Clock
    _reactor: Reactor

    def __post_init__(self) -> None:
        self._setbacks: dict[Step, Setback] = {}
        """By the step that failed last; forgotten when it succeeds."""

    def unready(self, job: Job, queue: WaitQueue) -> str:
        """Why a job could not be started for the moment; empty if it could."""
        if job.spec.client is not None and job.id not in self._clients:
            return "its client has not come back yet"
        if self._clients.is_stopped(job.id):
            return "its command is stopped: `fg` or SIGCONT lets it go on"
        if why := self._setback(job):
            return why
        try:
            return self._backend.unready(
                job, lambda: spare_main_memory(self._usage.capacities(), queue)
            )
        except LaunchFailed as failed:
            self._note(failed)
            return self._setback(job)

    def start(self, number: int) -> None:
        """Launch a job that was granted a lease; the backend reports what comes of it."""
        job = self._work.state.get(number)
        if job is None or not isinstance(job.state, Starting):
            return
        streams = self._clients.streams(number)
        if job.spec.client is not None and streams is None:
            # The client left between the grant and here; the attempt was never made.
            self._attempts.never_ran(job.attempt_id, "its client left")
            return
        if job.spec.in_process is None and self._setback(job):
            self._postpone(job)  # Another one of the same turn has failed just now.
            return
        gang = job.spec.gang
        if gang is not None and not self._ports.keep(number, job.state.lease.ports[gang.at]):
            # Somebody took it while no broker ran: the gang starts again, with other ports.
            self._postpone(job)
            return
        devices = [self._usage.devices[lease.device] for lease in job.state.lease.all]
        steps = _steps(job)
        try:
            if job.spec.in_process is not None:
                terms = self._backend.offer(job, devices)
                self._clients.send(job.id, messages.Offered(terms))
            else:
                given = streams if job.spec.client is not None else None
                self._backend.launch(job, devices, given)
        except LaunchFailed as failed:
            steps = steps[steps.index(failed.step) + 1 :]
            self._note(failed)
            self._postpone(job)
        for step in steps:
            self._setbacks.pop(step, None)

    def _setback(self, job: Job) -> str:
        """Why no such job is started at the moment; empty if it may be."""
        for step in _steps(job):
            setback = self._setbacks.get(step)
            if setback is not None and self._clock.now() < setback.until:
                return setback.why
        return ""

    def _note(self, failed: LaunchFailed) -> None:
        """This step has failed: let some time go by before anybody tries it again."""
        last = self._setbacks.get(failed.step)
        pause = _FIRST_PAUSE if last is None else min(2 * last.pause, _LONGEST_PAUSE)
        why = f"{failed}; tries again in {format_seconds(pause)}"
        self._setbacks[failed.step] = Setback(why, self._clock.now() + pause, pause)
        log.note(why)
        self._work.touch_waiting()
        self._reactor.call_later(pause, self._work.touch_waiting)

    def _postpone(self, job: Job) -> None:
        """Nothing of this attempt was started: have the job wait as before."""
        self._backend.forget(job.attempt_id)
        self._work.happened(Postponed(job.id, job.attempt))
        self._nested_leases.settle(job.spec.within)


def _steps(job: Job) -> tuple[Step, ...]:
    """The steps of starting this job, the last one first."""
    return ("start",) if job.spec.client is not None else ("start", "log")
