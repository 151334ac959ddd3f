"""What one client may cost, over REST and gRPC alike."""

import os
from collections.abc import Hashable

from msgspec import Struct

from sublet.channel.codes import Code
from sublet.devices.cgroup import memory_limit
from sublet.errors import ServingError

_MiB = 2**20
_RESERVED = 256
"""Descriptors for all that is no connection: listeners, engines, shared memory on its way."""
_FEWEST = 16


class Limits(Struct, frozen=True):
    """Sizes in bytes, times in seconds."""

    body: int = 128 * _MiB  # Of a REST request, also after it was unpacked.
    bodies: int = 512 * _MiB
    """Of all REST requests together that are still coming in."""
    connections: int = 4096  # Of each protocol.
    head: int = 64 * 1024  # Of the request line and all headers together.
    headers: int = 100
    chunks: int = 16_384
    """Of one body. A chunk costs the same whether it holds a byte or a page."""
    pipelined: int = 16
    """Requests of one connection that may run at a time; the others are not read yet."""
    streams: int = 16_384
    """Calls over gRPC that may be under way at a time, of all connections together."""
    call: float = 30.0
    """How long a REST request may take from its last byte to its answer."""
    idle: float = 120.0
    """How long a connection may be silent between two requests."""
    slow: float = 10.0
    """For a head, or for a client that reads nothing of its answer. In each such span a body
    must come at `rate`."""
    rate: int = 16 * 1024  # Bytes per second that a body must come at.
    linger: float = 1.0
    """How long a connection that will be closed still listens."""
    sweep: float = 1.0
    """How often the clocks of all connections are looked at."""

    def silence(self, inside: int) -> float:
        """How long a connection may be silent: less when three quarters of the places are taken."""
        return self.slow if inside > self.connections * 3 // 4 else self.idle


def places(most: int, protocols: int, descriptors: int) -> int:
    """How many connections each protocol may have with so many descriptors: clients of one
    cannot keep out those of another."""
    return max(_FEWEST, min(most, (descriptors - _RESERVED) // max(1, protocols)))


class Pace:
    """Watches that one body comes in fast enough."""

    __slots__ = ("_before", "_since")

    def __init__(self, now: float, received: int = 0) -> None:
        self._since = now
        self._before = received

    def too_slow(self, received: int, now: float, limits: Limits) -> bool:
        """Whether less has come in a span than has to. Asked now and then, with all that came."""
        waited = now - self._since
        if waited <= limits.slow:
            return False
        if received - self._before < limits.rate * limits.slow:
            return True
        self._since, self._before = now, received
        return False


SHARE = 4
"""The part of the memory that may be taken: one in so many."""


class MemoryBudget:
    """Shared by all that one server, or one front end, holds of a kind."""

    def __init__(self, size: int | None = None) -> None:
        self._size = share() if size is None else size
        self.taken = 0

    def take(self, size: int) -> None:
        """Raises if there is not so much left."""
        if self.taken + size > self._size:
            raise exhausted()
        self.taken += size

    def give(self, size: int) -> None:
        """Give back what was taken."""
        self.taken -= size


class CallBudget:
    """The calls that are not answered yet, and the memory of their tensors, of all models.

    A model may have as much as is left for all others together, so one that is flooded always
    leaves room: half of everything if it is the only one.
    """

    def __init__(self, size: int | None = None, calls: int = 8192) -> None:
        self._free_bytes = share() if size is None else size
        self._free_calls = calls
        self._held: dict[Hashable, tuple[int, int]] = {}  # Calls and bytes of each model.

    def take(self, model: Hashable, size: int, beside: int = 0) -> bool:
        """Whether the model may have one more call of this size. Raises if the server has no
        memory left for it; `beside` is held, too, and not counted here."""
        calls, held = self._held.get(model, (0, 0))
        free = self._free_bytes - beside
        if size > free:
            raise exhausted()
        if calls and (calls >= self._free_calls or held + size > free):
            return False
        self._held[model] = calls + 1, held + size
        self._free_calls -= 1
        self._free_bytes -= size
        return True

    def give(self, model: Hashable, size: int) -> None:
        """A call that was taken is over."""
        calls, held = self._held.pop(model)
        if calls > 1:
            self._held[model] = calls - 1, held - size
        self._free_calls += 1
        self._free_bytes += size


def exhausted() -> ServingError:
    """The error of a request for which there is no memory, or no descriptor."""
    return ServingError(
        "The server holds too many large requests at the moment. Try again later.",
        Code.RESOURCE_EXHAUSTED,
    )


def share(servers: int = 1) -> int:
    """The bytes that one of so many servers on this machine may hold."""
    ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = memory_limit()
    return min(ram, ram if limit is None else limit.most) // SHARE // servers
