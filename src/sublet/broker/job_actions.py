"""What people do to jobs that are there: cancel, pause, resume, retry."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from sublet.broker import job_limits
from sublet.broker.events import Held, Released, Reopened
from sublet.domain.job import Finished, Job, Paused, Starting, Waiting
from sublet.errors import BadRequest
from sublet.text import plain
from sublet.wire.messages import Verb

if TYPE_CHECKING:
    from sublet.broker.broker import Broker

_PASSING = (b"_", b"OLDPWD")
"""Variables of the shell that change with each command."""
_MOST_NAMES = 5


class JobActions:
    """The broker's hand on single jobs."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def perform(
        self, verb: Verb, numbers: tuple[int, ...], environ: dict[bytes, bytes]
    ) -> tuple[str, ...]:
        """Do it to all of them, if it can be done to all; says what was done to each. Those that
        are done again get this environment.

        Who ends an array has no part in which of it have finished by then: those are passed over,
        unless there is nobody else.
        """
        jobs = [self._broker.job(number) for number in dict.fromkeys(numbers)]
        over = [job.id for job in jobs if verb != "retry" and isinstance(job.state, Finished)]
        passed = frozenset(over) if len(over) < len(jobs) else frozenset()
        for job in jobs:
            if job.id in passed:
                continue
            _check(verb, job)
            if verb == "retry":
                self._broker.dependencies.check(job.spec, job.id, revived=numbers)
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
            self._broker.withdraw(job, "`sublet cancel`", "cancelled")
            return "is cancelled; it had not started"
        self._broker.stop(job, "cancelled")
        return "is being stopped"

    def _pause(self, job: Job) -> str:
        self._broker.work.happened(Held(job.id, self._broker.clock.wall()))
        if job.holds is None:
            return f"waits, and is not started before `sublet resume {job.id}`"
        self._broker.launcher.pause(job.attempt_id, True)
        if isinstance(job.state, Starting):
            return "is starting, and is paused as soon as it runs"
        return "is paused; it keeps its lease"

    def _resume(self, job: Job) -> str:
        clock = self._broker.clock
        self._broker.work.happened(Released(job.id, clock.wall(), clock.now()))
        if job.holds is None:
            return "is in the queue again"
        self._broker.resume(job)
        return "goes on"

    def _retry(self, job: Job, environ: dict[bytes, bytes]) -> str:
        clock = self._broker.clock
        around = replace(job.spec.surroundings, environ=environ, forgotten=())
        again = replace(
            job,
            spec=replace(job.spec, surroundings=around),
            state=Waiting(clock.wall(), clock.now()),
            attempt=job.attempt + 1,
            failures=0,
            past=(),
        )
        job_limits.check(again.spec)
        self._broker.dependencies.forget(job.id)
        self._broker.work.happened(Reopened(self._broker.work.ledger.common.share(again)))
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
