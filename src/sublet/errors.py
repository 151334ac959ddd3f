"""The error tree: each class says whose fault it is. All of them can be caught as `sublet.NAME`.

    SubletError
    ├── BadRequest          the request's: nothing was changed, ask differently
    │   └── TooLarge        the device can never give that much
    ├── WorldError          the world's: a disk, a socket, a process
    │   ├── BrokerGone      no broker answers and none could be started
    │   ├── BrokerRuns      the home has a broker, and can have only one
    │   ├── LedgerDamaged   the ledger cannot be read; `sublet recover` mends it
    │   ├── NodeLost        a machine of a Ray cluster is gone
    │   ├── Superseded      another broker has taken the home over, or the home is gone
    │   └── TimedOut        no room in the time that was given; a TimeoutError, too
    ├── CallFailed          a pool's call failed: its function did, or its worker
    │   ├── RemoteError     the function raised an error that cannot be unpickled here
    │   └── WorkerDied      the worker ended before the function did
    │       └── LeaseExceeded   it needed more memory than its lease
    ├── ServingError        a request to a served model failed; `code` is gRPC's
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
    """The request asks for more memory than the device has when it is empty."""


class WorldError(SubletError):
    """Something outside of Sublet failed."""


class BrokerGone(WorldError):
    """No broker answers, and none could be started."""


class BrokerRuns(WorldError):
    """A broker runs in this home already, and a home has only one."""


class LedgerDamaged(WorldError):
    """The ledger cannot be read, and is never reset without being asked."""


class Superseded(WorldError):
    """Another broker has taken this one's home over, or the home is gone: this one ends."""


class CallFailed(SubletError):
    """A call in a pool failed other than by an error of its function."""


class RemoteError(CallFailed):
    """The function raised an error that cannot be unpickled here; the cause has its traceback."""


class WorkerDied(CallFailed):
    """The worker of a call ended before the function did; other calls are not affected.

    `code` is the exit code as a shell shows it: 0 to 255, 128 + n for signal n.
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


class NodeLost(WorldError):
    """A machine of a Ray cluster is gone, or Ray has ended what ran there for this program."""


class TimedOut(WorldError, TimeoutError):
    """There was no room in the time that was given; nothing is held."""


class ServingError(SubletError):
    """A request to a served model was not answered; `code` is a `sublet.Code`."""

    def __init__(self, message: str, code: int, hint: str = "") -> None:
        super().__init__(message, hint)
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.code, self.hint)


class InternalError(SubletError):
    """A bug in Sublet."""
