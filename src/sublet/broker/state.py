"""What the broker knows. Nothing but `apply` changes it.

Waiting ──Granted──▶ Starting ──WorkerStarted──▶ Running ──AttemptEnded──▶ Finished
   ▲                    │ NeverRan                 │ AttemptEnded, to be tried again
   └────────────────────┴──────────────────────────┘
"""

from msgspec import Struct
from msgspec.structs import replace

from sublet.domain.job import Finished, Job, Outcome, Process, Running, Starting, Waiting
from sublet.domain.lease import Lease
from sublet.errors import InternalError


class Submitted(Struct, frozen=True):
    """A job was accepted."""

    job: Job


class Granted(Struct, frozen=True):
    """A waiting job gets a lease."""

    job: int
    at: float
    tick: float
    lease: Lease


class WorkerStarted(Struct, frozen=True):
    """The keeper has reported its worker."""

    job: int
    attempt: int
    at: float
    keeper: Process
    worker: Process
    how: str


class StopAsked(Struct, frozen=True):
    """Somebody wants it to end; it has not ended yet."""

    job: int
    why: str


class LeaseTrimmed(Struct, frozen=True):
    """Its worker is held to a smaller ceiling from now on."""

    job: int
    attempt: int
    ceiling: int


class NeverRan(Struct, frozen=True):
    """The attempt is over without a line of the program having run: try again."""

    job: int
    attempt: int
    at: float


class AttemptEnded(Struct, frozen=True):
    """The exit was seen. With `least`, the job is to be tried again under a larger lease."""

    job: int
    attempt: int
    at: float
    outcome: Outcome
    least: int = 0


class Withdrawn(Struct, frozen=True):
    """A job that holds nothing is not wanted any more."""

    job: int
    at: float
    outcome: Outcome


class Undone(Struct, frozen=True):
    """A decision could not be written down, so it was not made: the job is as it was before."""

    job: int
    before: Job | None


Event = (
    Submitted
    | Granted
    | WorkerStarted
    | StopAsked
    | LeaseTrimmed
    | NeverRan
    | AttemptEnded
    | Withdrawn
    | Undone
)


class State:
    """All live jobs."""

    def __init__(self, jobs: list[Job]) -> None:
        self._jobs = {job.id: job for job in jobs}

    def __contains__(self, job: int) -> bool:
        return job in self._jobs

    def __getitem__(self, job: int) -> Job:
        return self._jobs[job]

    def get(self, job: int) -> Job | None:
        """The live job of this number, if there is one."""
        return self._jobs.get(job)

    def jobs(self) -> list[Job]:
        """The live jobs in the order they came."""
        return list(self._jobs.values())

    def waiting(self) -> list[Job]:
        """Those without a lease."""
        return [job for job in self._jobs.values() if isinstance(job.state, Waiting)]

    def holding(self) -> list[Job]:
        """Those with one."""
        return [job for job in self._jobs.values() if job.lease is not None]

    def apply(self, event: Event) -> Job | None:
        """Take one event in; returns the job as it is now, for the ledger.

        A finished job is returned once and then forgotten: the ledger remembers it. None means
        that the job has never been.
        """
        match event:
            case Submitted(job=job):
                if job.id in self._jobs:
                    raise InternalError(f"{event} is about a job that is live already")
            case Undone(job=number) if number not in self._jobs:
                raise InternalError(f"{event} is about a job that is not live")
            case Undone(job=number, before=None):
                del self._jobs[number]
                return None
            case Undone(before=Job() as job):
                pass
            case _:
                job = self._next(event)
        if isinstance(job.state, Finished):
            del self._jobs[job.id]
        else:
            self._jobs[job.id] = job
        return job

    def _next(self, event: Event) -> Job:
        assert not isinstance(event, Submitted | Undone)
        job = self._jobs.get(event.job)
        if job is None:
            raise InternalError(f"{event} is about a job that is not live")
        attempt = getattr(event, "attempt", job.attempt)
        if attempt != job.attempt:
            raise InternalError(f"{event} is about attempt {attempt}; now it is {job.attempt}")
        match event, job.state:
            case Granted(at=at, tick=tick, lease=lease), Waiting(since=since):
                return job.evolve(Starting(at, lease, max(0.0, at - since), tick))
            case WorkerStarted(at=at, keeper=keeper, worker=worker, how=how), Starting() as was:
                running = Running(at, was.lease, was.waited, was.tick, keeper, worker, how)
                return job.evolve(running)
            case StopAsked(why=why), Running() as running:
                return job.evolve(replace(running, stopping=running.stopping or why))
            case LeaseTrimmed(ceiling=ceiling), Running(lease=lease) as running:
                return job.evolve(replace(running, lease=lease.trim(ceiling)))
            case NeverRan(at=at), Starting() | Running():
                return job.again(at)
            case AttemptEnded(at=at, least=least), Starting() | Running() if least:
                return job.again(at, least)
            case AttemptEnded(at=at, outcome=outcome), Starting(lease=lease):
                return job.evolve(Finished(at, outcome, lease))
            case AttemptEnded(at=at, outcome=outcome), Running(lease=lease, how=how):
                return job.evolve(Finished(at, outcome, lease, how))
            case Withdrawn(at=at, outcome=outcome), Waiting():
                return job.evolve(Finished(at, outcome))
        raise InternalError(f"{event} does not fit a job that is {type(job.state).__name__}")
