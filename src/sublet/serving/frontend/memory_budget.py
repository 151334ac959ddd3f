"""How much of what clients send may wait in a front end, over all connections.

Requests that are not whole yet take of it, messages of a stream that nobody has read, and tensors
whose answer has not come: a queue counts calls, and few calls can hold much.
"""

import os

from sublet.channel.codes import Code
from sublet.devices.cgroup import memory_limit
from sublet.errors import ServingError

SHARE = 4
"""The part of the memory that may be taken: one in so many."""


class MemoryBudget:
    """Shared by all that one server, or one front end, holds of a kind."""

    def __init__(self, size: int | None = None) -> None:
        self._size = share() if size is None else size
        self.taken = 0

    def take(self, size: int, beside: int = 0) -> None:
        """Raises if there is not so much left; `beside` is held, too, and not counted here."""
        if self.taken + beside + size > self._size:
            raise short()
        self.taken += size

    def give(self, size: int) -> None:
        """What has been taken is needed no more."""
        self.taken -= size


def short() -> ServingError:
    """For a request for which there is no memory, or no descriptor for that."""
    return ServingError(
        "The server holds too many large requests at the moment. Try again later.",
        Code.RESOURCE_EXHAUSTED,
    )


def share(servers: int = 1) -> int:
    """The bytes that one of so many servers on this machine may hold."""
    ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = memory_limit()
    return min(ram, ram if limit is None else limit.most) // SHARE // servers
