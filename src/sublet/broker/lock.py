"""One broker per home: a lock that goes with the process that holds it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator

from sublet.errors import BrokerRuns, Superseded, WorldError
from sublet.home import Home


class Lock:
    """The lock of a home, held. Somebody may remove the file, and with it what keeps others out."""

    def __init__(self, home: Home, descriptor: int) -> None:
        self._home = home
        self._descriptor = descriptor

    def check(self) -> None:
        """Raise Superseded if another broker could be here by now, or there is no home any more."""
        if not _is_file(self._home, self._descriptor):
            raise Superseded(
                f"The lock {self._home.lock} is gone, and perhaps the whole directory.",
                "Programs go on; the next command starts another broker.",
            )


@contextlib.contextmanager
def only_broker(home: Home) -> Iterator[Lock]:
    """Hold the lock of this home inside the block; raises BrokerRuns if another broker does."""
    descriptor = _lock(home)
    try:
        with contextlib.suppress(OSError):  # For people only; the disk may be full.
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())
        yield Lock(home, descriptor)
    finally:
        os.close(descriptor)


def _lock(home: Home) -> int:
    while True:
        try:
            descriptor = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise WorldError(
                f"The state directory {home.path} cannot be used: {error.strerror}.",
                "Make it writable, free some space, or set SUBLET_HOME to another directory.",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            owner = home.lock.read_text().strip() or "?"
            raise BrokerRuns(
                f"A broker already runs for {home.path}: process {owner}.",
                "`sublet status` talks to it; `sublet down` ends it.",
            ) from None
        if _is_file(home, descriptor):
            return descriptor
        os.close(descriptor)  # Removed between the two: what we have locked keeps nobody out.


def _is_file(home: Home, descriptor: int) -> bool:
    """Whether the lock's name still means this file."""
    try:
        return os.path.samestat(os.stat(home.lock), os.fstat(descriptor))
    except OSError:
        return False
