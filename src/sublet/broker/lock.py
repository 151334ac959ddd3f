"""One broker per home: a lock that goes with the process that holds it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator

from sublet.errors import WorldError
from sublet.home import Home


@contextlib.contextmanager
def only_broker(home: Home) -> Iterator[None]:
    """Be the only one in this home until the dedent; refused with the owner's pid."""
    try:
        descriptor = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise WorldError(
            f"The state directory {home.path} cannot be used: {error.strerror}.",
            "Make it writable, or set SUBLET_HOME to a directory that is.",
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        owner = home.lock.read_text().strip() or "?"
        raise WorldError(
            f"A broker already runs for {home.path}: process {owner}.",
            "`sublet status` talks to it; `sublet down` ends it.",
        ) from None
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        os.close(descriptor)
