"""The gRPC half of a front end."""

from sublet.serving.access import Access
from sublet.serving.frontend.grpc import reflection
from sublet.serving.frontend.grpc.calls import LARGEST_MESSAGE, Methods
from sublet.serving.frontend.grpc.connection import BUFFER, Connection
from sublet.serving.frontend.grpc.health import Health
from sublet.serving.frontend.grpc.oip import InferenceService
from sublet.serving.frontend.grpc.profiler import ProfilerService
from sublet.serving.frontend.grpc.tfserving import ModelService, PredictionService
from sublet.serving.frontend.limits import Limits, MemoryBudget
from sublet.serving.frontend.model_backend import ModelBackend
from sublet.serving.frontend.peer import Peer
from sublet.serving.frontend.protocol_server import ProtocolServer
from sublet.serving.frontend.shared_memory import Regions


class GrpcServer(ProtocolServer[Connection]):
    """One per front end. Each connection counts itself and its calls here."""

    def __init__(
        self,
        backend: ModelBackend,
        largest_message: int = LARGEST_MESSAGE,
        budget: int | None = None,
        limits: Limits | None = None,
        access: Access | None = None,
        regions: Regions | None = None,
    ) -> None:
        super().__init__(limits, access)
        self.health = Health()
        self.budget = MemoryBudget(budget)
        self.largest = largest_message
        self.buffer = memoryview(bytearray(BUFFER))
        """Where bytes come in, for all of a loop: they are looked at at once."""
        self.methods: Methods = {
            **PredictionService(backend).methods(),
            **ModelService(backend).methods(),
            **self.health.methods(),
            **reflection.methods(),
            **InferenceService(backend, self.health, regions).methods(),
            **ProfilerService(backend).methods(),
        }
        self.streams = 0  # Calls under way, of all connections.

    def connect(self, peer: Peer) -> Connection:
        return Connection(self, peer)

    async def drain(self, seconds: float) -> bool:
        self.health.change(False)
        return await super().drain(seconds)

    def change(self, ready: bool) -> None:
        self.health.change(ready and not self.draining)
