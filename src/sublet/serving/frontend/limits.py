"""What one client may cost, over REST and gRPC alike."""

from msgspec import Struct

_MiB = 2**20
_RESERVED = 256
"""Descriptors for all that is no connection: listeners, engines, shared memory on its way."""
_FEWEST = 16


class Limits(Struct, frozen=True):
    """Sizes in bytes, times in seconds."""

    body: int = 128 * _MiB
    """Of a REST request, also after it was unpacked."""
    bodies: int = 512 * _MiB
    """Of all REST requests together that are still coming in."""
    connections: int = 4096
    """Of each protocol."""
    head: int = 64 * 1024
    """Of the request line and all headers together."""
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
    """How long a head may take, or a client may read nothing of its answer. A body that is not
    complete must have come at `rate` in each such span."""
    rate: int = 16 * 1024
    """Bytes per second that a body must come at."""
    linger: float = 1.0
    """How long a connection that will be closed still listens."""
    sweep: float = 1.0
    """How often the clocks of all connections are looked at."""

    def silence(self, inside: int) -> float:
        """How long a connection may be silent if there are so many: when three quarters of the
        places are taken, those that say nothing make room."""
        return self.slow if inside > self.connections * 3 // 4 else self.idle


def places(most: int, protocols: int, descriptors: int) -> int:
    """How many connections each of so many protocols may have, if the process may have so many
    descriptors: clients of one cannot keep out those of another."""
    return max(_FEWEST, min(most, (descriptors - _RESERVED) // max(1, protocols)))


class Pace:
    """Of one body that is coming in."""

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
