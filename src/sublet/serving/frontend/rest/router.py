"""Which API a path belongs to. Everything that goes wrong leaves here as a reply."""

from sublet.errors import ServingError
from sublet.serving.access import Right
from sublet.serving.frontend.backpressure import DelayedRefusal
from sublet.serving.frontend.limits import Limits
from sublet.serving.frontend.model_backend import ModelBackend
from sublet.serving.frontend.rest import messages
from sublet.serving.frontend.rest.exchange import Answerer, ModelCalls, Pending, background
from sublet.serving.frontend.rest.messages import Head, Reply, Request
from sublet.serving.frontend.rest.oip import CHANGES, OipApi
from sublet.serving.frontend.rest.tfserving import TfServingApi
from sublet.serving.frontend.shared_memory import Regions

METRICS = "/monitoring/prometheus/metrics"
_METRICS_KIND = b"text/plain; version=0.0.4; charset=utf-8"
_REMEMBERED = 1024
_LONGEST_REMEMBERED = 512
_ALIVE = ("/", "/healthz")
_OPEN = frozenset((*_ALIVE, "/v2/health/live", "/v2/health/ready"))
"""What whoever looks after the server asks, and needs no token for."""


class Router:
    """All that is served over HTTP."""

    def __init__(
        self,
        backend: ModelBackend,
        limits: Limits,
        metrics: str | None = METRICS,
        regions: Regions | None = None,
    ) -> None:
        self._backend = backend
        self._metrics_path = metrics
        self._calls = ModelCalls(backend, limits)
        self._tfserving = TfServingApi(backend, self._calls)
        self._oip = OipApi(backend, self._calls, regions)
        self._routes: dict[tuple[str, str], Answerer] = {}

    def handle(self, request: Request) -> Reply | Pending:
        place = request.head.method, request.head.path
        try:
            answerer = self._routes.get(place)
            if answerer is None:
                answerer = self._find(*place)
                if len(self._routes) >= _REMEMBERED:
                    self._routes.clear()
                if len(request.head.path) <= _LONGEST_REMEMBERED:
                    self._routes[place] = answerer
            return answerer(request)
        except DelayedRefusal as refused:
            reply = messages.failure(refused)
            return Pending(refused.due, lambda _: reply)
        except ServingError as failed:
            return messages.failure(failed)

    def right(self, head: Head) -> Right:
        """What a request with this head needs."""
        looks = head.method in ("GET", "HEAD")
        if head.path.startswith(CHANGES):
            return Right.RELOAD
        return Right.OPEN if looks and head.path in _OPEN else Right.CALL

    def _find(self, method: str, path: str) -> Answerer:
        if path[:4].lower() == "/v1/":
            return self._tfserving.find(method, path)
        if path == "/v2" or path.startswith("/v2/"):
            return self._oip.find(method, path)
        if method in ("GET", "HEAD"):
            if path == self._metrics_path:
                return self._metrics
            if path in _ALIVE:
                return _alive
        return _nothing

    def _metrics(self, request: Request) -> Pending:
        return background(self._expose())

    async def _expose(self) -> Reply:
        return Reply(200, (await self._backend.exposition()).encode(), _METRICS_KIND)


def _alive(request: Request) -> Reply:
    return Reply(200, b'{"status": "alive"}')


def _nothing(request: Request) -> Reply:
    return messages.error(
        404,
        f"Nothing is served at {request.head.method} {request.head.path[:200]}. Models are at "
        "/v1/models/NAME:predict and /v2/models/NAME/infer.",
    )
