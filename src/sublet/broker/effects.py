"""What is done once a commit is on disk: records that `Broker` performs, in the order they came."""

from msgspec import Struct

from sublet.broker.connections import ClientConnection
from sublet.domain.job import Job
from sublet.wire.messages import Done, Queued, Reply


class Answer(Struct, frozen=True):
    """Reply to the connection that asked."""

    connection: ClientConnection
    message: Reply


class Notify(Struct, frozen=True):
    """Send this to the client of a job, if it has one."""

    job: int
    message: Reply


class ConfirmQueued(Struct, frozen=True):
    """Tell the client that submitted these jobs that they are in the queue."""

    jobs: Queued


class Launch(Struct, frozen=True):
    """Have the backend start the current attempt of a job that was granted a lease."""

    job: int


class SettleNested(Struct, frozen=True):
    """Name to the program of this job what the leases within its own leave of it."""

    job: int | None


class RaiseLimit(Struct, frozen=True):
    """The lease of an attempt has grown: give its processes what their allocations wait for."""

    attempt_id: str
    pid: int
    """The process for which it has grown."""
    more: int


class ForgetAttempt(Struct, frozen=True):
    """Have the backend drop its files of an attempt that is over."""

    attempt_id: str


class Learn(Struct, frozen=True):
    """Size the jobs of the same program anew: the ledger knows how this one went."""

    job: Job


class NotifyUser(Struct, frozen=True):
    """Tell whom this job names that it has finished."""

    job: Job


Effect = (
    Answer
    | Notify
    | ConfirmQueued
    | Launch
    | SettleNested
    | RaiseLimit
    | ForgetAttempt
    | Learn
    | NotifyUser
)


class Confirmation(Struct, frozen=True):
    """An answer that waits for the commit; if that fails, the client is told so."""

    connection: ClientConnection
    done: Done
