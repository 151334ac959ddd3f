"""The error tree: each class says whose fault it is.

    SubletError
    ├── BadRequest          the request's: nothing was changed, ask differently
    │   └── TooLarge        the device can never give that much
    ├── WorldError          the world's: a disk, a socket, a process
    │   ├── BrokerGone      no broker answers and none could be started
    │   ├── LedgerDamaged   the ledger cannot be read; `sublet recover` mends it
    │   └── TimedOut        no room in the time that was given; a TimeoutError, too
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


class TimedOut(WorldError, TimeoutError):
    """There was no room in the time that was given; nothing is held."""


class InternalError(SubletError):
    """A bug in Sublet."""
