"""What one client may cost."""

from msgspec import Struct

_MiB = 2**20


class Limits(Struct, frozen=True):
    """Sizes in bytes, times in seconds."""

    body: int = 128 * _MiB
    """Of a request, also after it was unpacked."""
    bodies: int = 512 * _MiB
    """Of all requests together that are still coming in."""
    connections: int = 4096
    head: int = 64 * 1024
    """Of the request line and all headers together."""
    headers: int = 100
    chunks: int = 16_384
    """Of one body. A chunk costs the same whether it holds a byte or a page."""
    pipelined: int = 16
    """Requests of one connection that may run at a time; the others are not read yet."""
    call: float = 30.0
    """How long a request may take from its last byte to its answer."""
    idle: float = 120.0
    """How long a connection may be silent between two requests."""
    slow: float = 10.0
    """How long a head may take, a body until it must have come at `rate`, or a client to read."""
    rate: int = 16 * 1024
    """Bytes per second that a body must come at."""
    linger: float = 1.0
    """How long a connection that will be closed still listens."""
    sweep: float = 1.0
    """How often the clocks of all connections are looked at."""
