"""What can become of a job. `State.apply` takes these in, and says which fit a job as it is."""

from typing import NamedTuple

from msgspec import Struct

from sublet.domain.job import Again, Job, Outcome, Process
from sublet.domain.lease import Lease


class Submitted(Struct, frozen=True):
    """A new job was accepted."""

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


class LeaseResized(Struct, frozen=True):
    """Its ceiling is another one from now on."""

    job: int
    attempt: int
    ceiling: int


class NeverRan(Struct, frozen=True):
    """The attempt is over without a line of the program having run: try again."""

    job: int
    attempt: int
    at: float
    tick: float = 0.0
    delay: float = 0.0
    why: str = ""


class Postponed(Struct, frozen=True):
    """The world did not let the attempt be made: the job waits on, and keeps its place."""

    job: int
    attempt: int


class AttemptEnded(Struct, frozen=True):
    """The exit was seen. With `again`, the job is to be tried again on these terms."""

    job: int
    attempt: int
    at: float
    outcome: Outcome
    again: Again | None = None
    tick: float = 0.0
    how: str = ""
    """How it had started, where that is known only now."""


class Held(Struct, frozen=True):
    """It is not to go on for now."""

    job: int
    at: float


class Released(Struct, frozen=True):
    """A paused job may go on."""

    job: int
    at: float
    tick: float


class Withdrawn(Struct, frozen=True):
    """A job that holds nothing is not wanted any more."""

    job: int
    at: float
    outcome: Outcome


class Undone(Struct, frozen=True):
    """A decision could not be written down, so it was not made: the job is as it was before."""

    job: int
    before: Job | None


class Reopened(Struct, frozen=True):
    """A finished job is to be done again."""

    job: Job


Event = (
    Submitted
    | Granted
    | WorkerStarted
    | StopAsked
    | LeaseResized
    | NeverRan
    | Postponed
    | AttemptEnded
    | Held
    | Released
    | Withdrawn
    | Reopened
    | Undone
)


class Change(NamedTuple):
    """An event, and what it made of a job; None if there was no such live job before."""

    event: Event
    before: Job | None
    after: Job
