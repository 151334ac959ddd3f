"""The HTTP half of a front end."""

from sublet.serving.access import Access
from sublet.serving.frontend.limits import Limits
from sublet.serving.frontend.model_backend import ModelBackend
from sublet.serving.frontend.peer import Peer
from sublet.serving.frontend.protocol_server import ProtocolServer
from sublet.serving.frontend.rest import messages
from sublet.serving.frontend.rest.connection import Connection
from sublet.serving.frontend.rest.heads import Heads
from sublet.serving.frontend.rest.router import METRICS, Router
from sublet.serving.frontend.shared_memory import Regions


class Server(ProtocolServer[Connection]):
    """One per front end; uvloop makes it faster."""

    def __init__(
        self,
        backend: ModelBackend,
        limits: Limits | None = None,
        metrics: str | None = METRICS,
        cors: bool = False,
        access: Access | None = None,
        regions: Regions | None = None,
    ) -> None:
        super().__init__(limits, access)
        self.heads = Heads(self.limits)
        self.router = Router(backend, self.limits, metrics, regions)
        self.lines = messages.CORS if cors else b""  # Header lines of every reply.
        self.coming = 0  # Bytes of bodies that are not whole yet, of all connections.

    def connect(self, peer: Peer) -> Connection:
        return Connection(self, peer)

    def sweep(self) -> None:
        messages.prefixes.date()
        super().sweep()
