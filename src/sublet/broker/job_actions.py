"""What people do to jobs that are there: cancel, pause, resume, retry."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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
        """Do it to all of these jobs, or raise BadRequest and do it to none; returns what was done
        to each. With `retry`, the jobs get this environment.

        Whoever ends an array cannot know which of it have finished by then: those are passed over,
        unless all have finished.
        """
        jobs = [self._work.job(number) for number in dict.fromkeys(numbers)]
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
        return tuple(
            f"#{job.id} {job.name} {'had finished already' if job.id in passed else do(job)}"
            for job in jobs
        )

    def _cancel(self, job: Job) -> str:
        if isinstance(job.state, Finished):
            return "was cancelled"
        if job.holds is None:
            self._control.withdraw(job, "`sublet cancel`", CANCELLED)
            return "is cancelled; it had not started"
        self._control.stop(job, CANCELLED)
        return "is being stopped"

    def _pause(self, job: Job) -> str:
        self._control.pause(job)
        if job.holds is None:
            return f"waits, and is not started before `sublet resume {job.id}`"
        if isinstance(job.state, Starting):
            return "is starting, and is paused as soon as it runs"
        return "is paused; it keeps its lease"

    def _resume(self, job: Job) -> str:
        self._control.resume(job)
        return "is in the queue again" if job.holds is None else "goes on"

    def _retry(self, job: Job, environ: dict[bytes, bytes]) -> str:
        around = replace(job.spec.surroundings, environ=environ, forgotten=())
        again = replace(
            job,
            spec=replace(job.spec, surroundings=around),
            state=Waiting(self._clock.wall(), self._clock.now()),
            attempt=job.attempt + 1,
            failures=0,
            past=(),
        )
        job_limits.check(again.spec)
        self._dependencies.forget(job.id)
        self._work.happened(Reopened(self._work.ledger.common.share(again)))
        return f"is in the queue again, as attempt {again.attempt}{_missing(job, environ)}"


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
            if job.spec.client is not None:
                raise BadRequest(
                    f"{what} ran in the foreground of a terminal that is gone.",
                    "Run the command again.",
                )
            return
        if verb == "cancel" and job.state.outcome.cause == "cancelled":
            # Perhaps by this very request, put to a broker that died over it.
            return
        raise BadRequest(f"{what} has finished already.", f"`sublet ps {job.id}` says how.")
    if verb == "retry":
        raise BadRequest(f"{what} has not finished.", f"`sublet cancel {job.id}` ends it.")
    paused = isinstance(job.state, Paused)
    if verb == "pause" and paused:
        raise BadRequest(f"{what} is paused already.", f"`sublet resume {job.id}` lets it go on.")
    if verb == "resume" and not paused:
        raise BadRequest(f"{what} is not paused.", "Nothing was changed.")
