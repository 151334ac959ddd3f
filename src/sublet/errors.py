"""The error tree: each class says whose fault it is.

    SubletError
    ├── BadRequest          the request's: nothing was changed, ask differently
    │   └── TooLarge        the device can never give that much
    ├── WorldError          the world's: a disk, a socket, a process
    │   ├── BrokerGone      no broker answers and none could be started
    │   ├── LedgerDamaged   the ledger cannot be read; `sublet recover` mends it
    │   ├── Superseded      another broker has taken the home over, or the home is gone
    │   └── TimedOut        no room in the time that was given; a TimeoutError, too
    ├── CallFailed          a call's in a pool: its function, or the worker it ran in
    │   ├── RemoteError     the function raised what cannot be had here
    │   └── WorkerDied      the worker ended before the function did
    │       └── LeaseExceeded   it needed more memory than its lease
    ├── ServingError        a served model's answer to one request; `code` is gRPC's
    └── InternalError       ours: a bug to report

A message says what is wrong; a hint says what to do next.
"""


class SubletError(Exception):
    """Base of all errors that Sublet raises on purpose."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.hint), self.__dict__


class BadRequest(SubletError):
    """The request cannot be met as it stands; nothing was changed."""


class TooLarge(BadRequest):
    """More memory was asked than the device could give when empty."""


class WorldError(SubletError):
    """Something outside of Sublet failed."""


class BrokerGone(WorldError):
    """No broker answers, and none could be started."""


class LedgerDamaged(WorldError):
    """The ledger cannot be read, and is never reset without being asked."""


class Superseded(WorldError):
    """This broker has its home no longer: it decides nothing any more, and ends."""


class CallFailed(SubletError):
    """A call in a pool did not come to its end."""


class RemoteError(CallFailed):
    """The function raised an error that cannot be had in this process; the cause tells of it."""


class WorkerDied(CallFailed):
    """The worker of a call has ended; other calls are not concerned.

    `code` is as a shell would say it: 0 to 255, 128 + n for signal n.
    """

    def __init__(self, message: str, hint: str = "", code: int | None = None) -> None:
        super().__init__(message, hint)
        self.code = code


class LeaseExceeded(WorkerDied):
    """The call needed more memory than its lease; `suggest` is a size in bytes worth trying."""

    def __init__(
        self, message: str, hint: str = "", code: int | None = None, suggest: int | None = None
    ) -> None:
        super().__init__(message, hint, code)
        self.suggest = suggest


class TimedOut(WorldError, TimeoutError):
    """There was no room in the time that was given; nothing is held."""


class ServingError(SubletError):
    """A request to a served model was not answered; `code` is a `sublet.channel.codes.Code`."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.code)


class InternalError(SubletError):
    """A bug in Sublet."""
