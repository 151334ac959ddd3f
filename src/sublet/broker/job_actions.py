"""What people do to jobs that are there: cancel, pause, resume, retry."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from msgspec.structs import replace

from sublet.broker import job_limits
from sublet.broker.dependencies import Dependencies
from sublet.broker.events import Reopened
from sublet.broker.job_control import JobControl
from sublet.broker.unit_of_work import UnitOfWork
from sublet.clock import Clock
from sublet.domain.job import CANCELLED, Finished, Job, Paused, Starting, Waiting
from sublet.errors import BadRequest
from sublet.text import plain
from sublet.wire.messages import Verb

_PASSING = (b"_", b"OLDPWD")
"""Variables of the shell that change with each command."""
_MOST_NAMES = 5


@dataclass(eq=False)
class JobActions:
    """Checks that an action is possible, and does it."""

    _work: UnitOfWork
    _control: JobControl
    _dependencies: Dependencies
    _clock: Clock

    def perform(
        self, verb: Verb, numbers: tuple[int, ...], environ: dict[bytes, bytes]
    ) -> tuple[str, ...]:
        """Do it to all of these jobs, or raise BadRequest and do it to none; returns sentences that
        say what was done. With `retry`, the jobs get this environment.

        Whoever ends an array cannot know which of it have finished by then: those are passed over,
        unless all have finished. A task of a gang stands for all of it.
        """
        named = [self._work.job(number) for number in dict.fromkeys(numbers)]
        numbers = tuple(dict.fromkeys(number for job in named for number in whole(job)))
        jobs = [self._work.job(number) for number in numbers]
        over = [job.id for job in jobs if verb != "retry" and isinstance(job.state, Finished)]
        passed = frozenset(over) if len(over) < len(jobs) else frozenset()
        for job in jobs:
            if job.id in passed:
                continue
            _check(verb, job)
            if verb == "retry":
                self._dependencies.check(job.spec, job.id, revived=numbers)
        actions: dict[Verb, Callable[[Job], str]] = {
            "cancel": self._cancel,
            "pause": self._pause,
            "resume": self._resume,
            "retry": partial(self._retry, environ=environ),
        }
        do = actions[verb]
        done = [(job, "already finished" if job.id in passed else do(job)) for job in jobs]
        return tuple(_sentences(done))

    def _cancel(self, job: Job) -> str:
        if isinstance(job.state, Finished):
            return "cancelled"
        if job.holds is None:
            self._control.withdraw(job, "`sublet cancel`", CANCELLED)
            return "cancelled before starting"
        self._control.stop(job, CANCELLED)
        return "stopping"

    def _pause(self, job: Job) -> str:
        self._control.pause(job)
        if job.holds is None:
            return "held in the queue until `sublet resume`"
        if isinstance(job.state, Starting):
            return "starting; paused as soon as it runs"
        return "paused; keeps its lease"

    def _resume(self, job: Job) -> str:
        self._control.resume(job)
        return "back in the queue" if job.holds is None else "resumed"

    def _retry(self, job: Job, environ: dict[bytes, bytes]) -> str:
        around = replace(job.spec.surroundings, environ=environ, forgotten=())
        again = replace(
            job,
            spec=replace(job.spec, surroundings=around),
            state=Waiting(self._clock.wall(), self._clock.now()),
            attempt=job.attempt + 1,
            failures=0,
            false_starts=0,
            past=(),
        )
        job_limits.check(again.spec)
        self._dependencies.forget(job.id)
        self._work.happened(Reopened(self._work.ledger.common.share(again)))
        return f"back in the queue, attempt {again.attempt}{_missing(job, environ)}"


def whole(job: Job) -> Iterable[int]:
    """The numbers of all jobs that start and end with this one."""
    return (job.id,) if job.spec.gang is None else job.spec.gang.numbers


def _sentences(done: list[tuple[Job, str]]) -> Iterator[str]:
    """One sentence for a job, or for several neighbours to which the same was done."""
    for how, pairs in groupby(done, lambda pair: pair[1]):
        jobs = [job for job, _ in pairs]
        if len(jobs) <= _MOST_NAMES:
            yield from (f"#{job.id} {job.name}: {how}" for job in jobs)
            continue
        numbers = [job.id for job in jobs]
        gaps = numbers != list(range(numbers[0], numbers[-1] + 1))
        yield f"{len(jobs)} jobs, #{numbers[0]} {'…' if gaps else 'to'} #{numbers[-1]}: {how}"


def _missing(job: Job, environ: dict[bytes, bytes]) -> str:
    """A hint at the variables that an earlier attempt had and the next one has not."""
    around = job.spec.surroundings
    names = [
        name for name in around.forgotten or around.environ if name not in {*environ, *_PASSING}
    ]
    if not names:
        return ""
    shown = ", ".join(plain(name.decode(errors="replace")) for name in names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"; not set any more: {shown}{more}"


def _check(verb: Verb, job: Job) -> None:
    """Refuse what cannot be done to a job as it is."""
    what = f"#{job.id} {job.name}"
    if job.spec.in_process is not None and (
        job.holds is not None or isinstance(job.state, Finished)
    ):
        if job.holds is None:
            raise BadRequest(f"{what} has ended.", "Call `sublet.lease` in a new process.")
        raise BadRequest(
            f"{what} is held by the process {job.spec.in_process.pid} itself.",
            "End that one: it is somebody's notebook or script, and the lease ends with it.",
        )
    if isinstance(job.state, Finished):
        if verb == "retry":
            if job.spec.client is not None or (job.spec.gang and job.spec.gang.client):
                raise BadRequest(
                    f"{what} ran in the foreground of a terminal that is gone.",
                    "Run the command again.",
                )
            return
        if verb == "cancel" and job.state.outcome.cause == "cancelled":
            # Perhaps by this very request, put to a broker that died over it.
            return
        raise BadRequest(f"{what} has already finished.", f"`sublet ps {job.id}` says how.")
    if verb == "retry":
        raise BadRequest(f"{what} has not finished.", f"`sublet cancel {job.id}` ends it.")
    paused = isinstance(job.state, Paused)
    if verb == "pause" and paused:
        raise BadRequest(f"{what} is already paused.", f"Resume it with `sublet resume {job.id}`.")
    if verb == "resume" and not paused:
        raise BadRequest(f"{what} is not paused.", "Nothing was changed.")
