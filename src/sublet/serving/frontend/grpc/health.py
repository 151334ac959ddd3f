"""grpc.health.v1.Health: whether this front end takes calls."""

import asyncio

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.serving.access import Right
from sublet.serving.frontend.grpc import reflection
from sublet.serving.frontend.grpc.calls import Call, Data, Method, Methods
from sublet.serving.frontend.grpc.requests import parse, serialized
from sublet.serving.frontend.proto import message

SERVING = 1
NOT_SERVING = 2
SERVICE_UNKNOWN = 3

_REQUEST = message("grpc.health.v1.HealthCheckRequest")
_RESPONSE = message("grpc.health.v1.HealthCheckResponse")


class Health:
    def __init__(self) -> None:
        self._services = ("", *reflection.services())
        self.ready = True
        self._changed = asyncio.Event()

    def change(self, ready: bool) -> None:
        """Tell everyone who watches."""
        if ready != self.ready:
            self.ready = ready
            self._changed.set()
            self._changed = asyncio.Event()

    def methods(self) -> Methods:
        path = b"/grpc.health.v1.Health/"
        return {
            path + b"Check": Method(self.check, right=Right.OPEN),
            path + b"List": Method(self.list, right=Right.OPEN),
            path + b"Watch": Method(None, self.watch, right=Right.OPEN),
        }

    async def check(self, data: Data, deadline: float | None) -> bytes:
        if parse(_REQUEST, data).service not in self._services:
            raise ServingError("unknown service", Code.NOT_FOUND)
        return _bytes(self._status())

    async def list(self, data: Data, deadline: float | None) -> bytes:
        """The state of each service."""
        response = message("grpc.health.v1.HealthListResponse")()
        for service in self._services:
            response.statuses[service].status = self._status()
        return serialized(response)

    async def watch(self, call: Call) -> None:
        """The state of a service, and each change of it; never ends by itself."""
        known = parse(_REQUEST, await call.read() or b"").service in self._services
        while True:
            changed = self._changed
            await call.write(_bytes(self._status() if known else SERVICE_UNKNOWN))
            await changed.wait()

    def _status(self) -> int:
        return SERVING if self.ready else NOT_SERVING


def _bytes(status: int) -> bytes:
    return serialized(_RESPONSE(status=status))
