"""File descriptors of this process: how many there may be, and how many are left.

The kernel always gives out the lowest number that is free. So a new descriptor with a high number
means that nearly all are in use, and nobody has to count them.
"""

import resource

SPARE = 64
"""How many are kept for our own work: starting programs, reading /proc, writing files."""


_before: int | None = None


def raise_limit() -> None:
    """Allow this process as many as the system lets it have; 1,024 is a common default."""
    global _before
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == most:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError):
        return  # Refused in spite of the hard limit: the old one stands.
    _before = limit if _before is None else _before


def inherited() -> tuple[int, int]:
    """The limits for programs that are started from here: those before `raise_limit`."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (limit if _before is None or limit != most else _before), most


def limit() -> int:
    """How many this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def scarce(newest: int) -> bool:
    """Whether only the spare ones are left, if this is the newest descriptor."""
    return newest >= limit() - SPARE
