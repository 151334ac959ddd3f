"""How many descriptors this process may have, and how many connections that is enough for."""

import contextlib
import resource

_RESERVED = 256
"""For everything that is no connection: listeners, engines, shared memory on its way."""
_FEWEST = 16


def raise_limit() -> int:
    """Allow this process all descriptors that it may have; how many. The usual 1,024 are meant for
    programs that use `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft


def connections(most: int, protocols: int, limit: int) -> int:
    """How many connections one of so many protocols may have, if all are to have their share:
    clients of one cannot keep out those of another."""
    return max(_FEWEST, min(most, (limit - _RESERVED) // max(1, protocols)))
