"""What all connections of a gRPC server share."""

from typing import TYPE_CHECKING, Protocol

from sublet.serving.access import Access
from sublet.serving.frontend.grpc.calls import Methods
from sublet.serving.frontend.limits import Limits
from sublet.serving.frontend.memory_budget import MemoryBudget

if TYPE_CHECKING:
    from sublet.serving.frontend.grpc.connection import Connection


class ServerContext(Protocol):
    """Their server. Each connection counts itself and its calls here."""

    methods: Methods
    room: MemoryBudget
    largest: int
    """Bytes of a message at most."""
    buffer: memoryview
    """Where bytes come in, for all of a loop: they are looked at at once."""
    limits: Limits
    access: Access
    connections: "set[Connection]"
    streams: int
    """Calls under way, of all connections."""
    draining: bool

    def left(self) -> None:
        """A connection has ended."""
