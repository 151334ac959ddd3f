"""What the broker knows. Nothing but `apply` changes it.

Waiting ──Granted──▶ Starting ──WorkerStarted──▶ Running ──AttemptEnded──▶ Finished
   ▲                    │ NeverRan, Postponed      │ AttemptEnded, to be tried again
   └────────────────────┴──────────────────────────┘
Any of these but Finished ──Held──▶ Paused ──Released──▶ as before;  Finished ──Reopened──▶ Waiting
"""

from msgspec.structs import replace

from sublet.broker.events import (
    AttemptEnded,
    Event,
    Granted,
    Held,
    LeaseResized,
    NeverRan,
    Postponed,
    Released,
    Reopened,
    StopAsked,
    Submitted,
    Undone,
    Withdrawn,
    WorkerStarted,
)
from sublet.domain.job import Again, Finished, Job, Paused, Running, Starting, Waiting
from sublet.errors import InternalError


class State:
    """All live jobs, by number and by what they wait for or hold. Only `apply` changes it."""

    def __init__(self, jobs: list[Job]) -> None:
        self._jobs: dict[int, Job] = {}
        self._waiting: dict[int, Job] = {}
        self._holding: dict[int, Job] = {}
        self._paused: dict[int, Job] = {}
        self._tokens: dict[str, int] = {}
        self._inner: dict[int, dict[int, Job]] = {}
        for job in jobs:
            self._keep(job)

    def __contains__(self, job: int) -> bool:
        return job in self._jobs

    def __getitem__(self, job: int) -> Job:
        return self._jobs[job]

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, job: int) -> Job | None:
        """The live job of this number, if there is one."""
        return self._jobs.get(job)

    def with_token(self, token: str) -> Job | None:
        """The first live job that was asked for with this token."""
        return self._jobs.get(self._tokens.get(token, -1))

    def jobs(self) -> list[Job]:
        """The live jobs in the order they came."""
        return list(self._jobs.values())

    @property
    def waits(self) -> bool:
        """Whether anybody waits for a lease."""
        return bool(self._waiting)

    def waiting(self) -> list[Job]:
        """Those without a lease that are not paused, in the order they came."""
        return [self._waiting[number] for number in sorted(self._waiting)]

    def holding(self) -> list[Job]:
        """Those with one, paused or not, in the order they came."""
        return [self._holding[number] for number in sorted(self._holding)]

    def paused(self) -> list[Job]:
        """Those that are not to go on for now."""
        return [self._paused[number] for number in sorted(self._paused)]

    def within(self, number: int) -> list[Job]:
        """The live jobs whose leases are, or will be, part of this job's lease."""
        return list(self._inner.get(number, {}).values())

    def outer(self) -> list[Job]:
        """The jobs that hold a lease and have others within it."""
        return [self._holding[number] for number in sorted(self._inner) if number in self._holding]

    def apply(self, event: Event) -> Job | None:
        """Take one event in; returns the job as it is now, for the ledger.

        A finished job is returned once and then forgotten: the ledger remembers it. None means
        that the job has never been.
        """
        match event:
            case Submitted(job=job) | Reopened(job=job):
                if job.id in self._jobs:
                    raise InternalError(f"{event} is about a job that is live already")
            case Undone(job=number, before=None) if number not in self._jobs:
                raise InternalError(f"{event} is about a job that is not live")
            case Undone(job=number, before=None):
                self._drop(number)
                return None
            case Undone(before=Job() as job):
                pass
            case _:
                job = self._next(event)
        self._keep(job)
        return job

    def _keep(self, job: Job) -> None:
        if isinstance(job.state, Finished):
            self._drop(job.id)
            return
        self._jobs[job.id] = job
        self._tokens.setdefault(job.token, job.id)
        if job.spec.within is not None:
            self._inner.setdefault(job.spec.within, {})[job.id] = job
        for index, belongs in (
            (self._waiting, isinstance(job.state, Waiting)),
            (self._holding, job.holds is not None),
            (self._paused, isinstance(job.state, Paused)),
        ):
            if belongs:
                index[job.id] = job
            else:
                index.pop(job.id, None)

    def _drop(self, number: int) -> None:
        job = self._jobs.pop(number, None)
        self._waiting.pop(number, None)
        self._holding.pop(number, None)
        self._paused.pop(number, None)
        if job is not None and self._tokens.get(job.token) == number:
            del self._tokens[job.token]
        if job is not None and job.spec.within is not None:
            self._inner[job.spec.within].pop(number, None)
            if not self._inner[job.spec.within]:
                del self._inner[job.spec.within]

    def _next(self, event: Event) -> Job:
        assert not isinstance(event, Submitted | Reopened | Undone)
        job = self._jobs.get(event.job)
        if job is None:
            raise InternalError(f"{event} is about a job that is not live")
        attempt = getattr(event, "attempt", job.attempt)
        if attempt != job.attempt:
            raise InternalError(f"{event} is about attempt {attempt}; now it is {job.attempt}")
        match event, job.state:
            case Granted(at=at, tick=tick, lease=lease), Waiting() as was:
                # By the wall clock only where the other one has begun anew.
                known = 0 < was.tick <= tick
                waited = tick - was.tick if known else max(0.0, at - was.since)
                return job.evolve(Starting(at, lease, waited, tick))
            case WorkerStarted(), Starting() as was:
                return job.evolve(_started(was, event))
            case WorkerStarted(), Paused(was=Starting() as was) as paused:
                return job.evolve(replace(paused, was=_started(was, event)))
            case StopAsked(why=why), Starting() | Running() as was:
                return job.evolve(replace(was, stopping=was.stopping or why))
            case LeaseResized(ceiling=ceiling), Running(lease=lease) as running:
                return job.evolve(replace(running, lease=lease.resize(ceiling)))
            case LeaseResized(ceiling=ceiling), Paused(was=Running(lease=lease) as was) as paused:
                return job.evolve(replace(paused, was=replace(was, lease=lease.resize(ceiling))))
            case StopAsked(why=why), Paused(was=Starting() | Running() as was) as paused:
                was = replace(was, stopping=was.stopping or why)
                return job.evolve(replace(paused, was=was))
            case Held(at=at), Waiting() | Starting() | Running() as was:
                return job.evolve(Paused(at, was))
            case Released(), Paused(was=Starting() | Running() as was):
                return job.evolve(was)
            case Released(tick=tick), Paused(was=Waiting() as waiting):
                return job.evolve(replace(waiting, tick=tick, delay=0.0))
            case NeverRan(at=at), Paused(was=Starting() | Running()):
                return job.again(Paused(at, _anew(event)))
            case NeverRan(), Starting() | Running():
                return job.again(_anew(event))
            case Postponed(), Starting() as was:
                return job.evolve(_before(was))
            case Postponed(), Paused(was=Starting() as was) as paused:
                return job.evolve(replace(paused, was=_before(was)))
            case AttemptEnded(again=Again() as again), _ if job.holds is not None:
                after = job.after(event.at, event.tick, event.outcome, again)
                # Somebody paused it: another attempt waits for `resume`, too.
                if isinstance(job.state, Paused) and isinstance(after.state, Waiting):
                    return after.evolve(Paused(job.state.since, after.state))
                return after
            case AttemptEnded(at=at, outcome=outcome, how=how), _ if job.holds is not None:
                return job.evolve(Finished(at, outcome, job.lease, how or job.how))
            case Withdrawn(at=at, outcome=outcome), Waiting() | Paused(was=Waiting()):
                return job.evolve(Finished(at, outcome))
        raise InternalError(f"{event} does not fit a job that is {type(job.state).__name__}")


def _before(was: Starting) -> Waiting:
    """The job as it waited before its lease was granted."""
    return Waiting(was.since - was.waited, was.tick - was.waited)


def _anew(event: NeverRan) -> Waiting:
    return Waiting(event.at, event.tick, event.delay, event.why)


def _started(was: Starting, event: WorkerStarted) -> Running:
    return Running(
        since=event.at,
        lease=was.lease,
        waited=was.waited,
        tick=was.tick,
        keeper=event.keeper,
        worker=event.worker,
        how=event.how,
        stopping=was.stopping,
    )
