"""File descriptors of this process: how many there may be, and how many are left.

The kernel always gives out the lowest number that is free. So a new descriptor with a high number
means that nearly all are in use, and nobody has to count them.
"""

import resource

SPARE = 64
"""The last ones, kept for our own work: starting programs, reading /proc, writing files."""


def raise_limit() -> None:
    """Allow this process as many as the system lets it have; 1,024 is a common default."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError):
        return  # The system says one thing and does another: the old limit stands.


def limit() -> int:
    """How many this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def scarce(newest: int) -> bool:
    """Whether only the spare ones are left, now that this number was given out."""
    return newest >= limit() - SPARE
