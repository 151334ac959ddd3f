"""Which jobs have to end before another one starts.

A job can only name jobs that were there before it, so there are no cycles.
"""

from collections.abc import Collection

from sublet.broker.unit_of_work import UnitOfWork
from sublet.domain.job import Finished, Job, JobSpec
from sublet.errors import BadRequest
from sublet.policy.retry import ending


class Dependencies:
    """Looks jobs up, and remembers how finished ones have ended."""

    def __init__(self, work: UnitOfWork) -> None:
        self._state = work.state
        self._work = work
        self._ended: dict[int, str] = {}
        """How a finished job has failed; empty if it has not."""

    def check(self, spec: JobSpec, own: int, revived: Collection[int] = ()) -> None:
        """Refuse to wait for what is not there, or cannot come about any more.

        `revived` are finished jobs that are about to be live again.
        """
        for number in (*spec.after, *spec.after_ok):
            if number >= own or (number not in self._state and self._failure(number) is None):
                raise BadRequest(
                    f"There is no job {number} to wait for.", "Run `sublet ps` to list jobs."
                )
        for number in spec.after_ok:
            if number in self._state or number in revived:
                continue
            if failure := self._failure(number):
                raise BadRequest(
                    f"#{number} did not succeed ({failure}): --after-ok {number} would wait "
                    "for ever.",
                    f"Use --after {number}, or `sublet retry {number}` first.",
                )

    def unmet(self, job: Job) -> tuple[int, ...]:
        """The jobs it waits for that have not ended yet."""
        spec = job.spec
        if not spec.after and not spec.after_ok:
            return ()
        return tuple(number for number in (*spec.after, *spec.after_ok) if number in self._state)

    def hopeless(self, job: Job) -> str:
        """Why a job that waits for others can never start; empty if it can."""
        for number in job.spec.after_ok:
            if number not in self._state and (failure := self._failure(number)):
                return f"#{number} did not succeed ({failure})"
        return ""

    def forget(self, number: int) -> None:
        """Look this job up anew: it is live again."""
        self._ended.pop(number, None)

    def _failure(self, number: int) -> str | None:
        """How a finished job has failed, empty if it has not; None if there is no such job."""
        if number not in self._ended:
            job = self._work.find(number)
            if job is None or not isinstance(job.state, Finished):
                return None
            outcome = job.state.outcome
            well = outcome.cause == "exited" and outcome.code == 0
            self._ended[number] = "" if well else ending(outcome)
        return self._ended[number]
