"""A request that was read, until its reply is there, and the calls of models that it needs."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from sublet.channel.client_protocol import Answer
from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.serving.catalogue import Catalogue, Version
from sublet.serving.frontend.limits import Limits
from sublet.serving.frontend.model_backend import Arrays, ModelBackend
from sublet.serving.frontend.rest import messages
from sublet.serving.frontend.rest.messages import Head, Reply, Request

log = logging.getLogger(__name__)

_REMEMBERED = 4096


class Pending(NamedTuple):
    """A reply that waits for somebody else's answer."""

    future: "asyncio.Future[Any]"
    finish: "Callable[[asyncio.Future[Any]], Reply]"
    """Called once, when the future is done. May raise ServingError."""


Answerer = Callable[[Request], Reply | Pending]


class Exchange:
    """A request that was read, and its reply once there is one; `send` is called then."""

    __slots__ = ("_pending", "_send", "head", "reply", "until")

    def __init__(self, send: Callable[[], None], head: Head, until: float) -> None:
        self.head = head
        self.reply: Reply | None = None
        self.until = until
        self._send = send
        self._pending: Pending | None = None

    def wait(self, pending: Pending) -> None:
        self._pending = pending
        pending.future.add_done_callback(self._done)

    def give_up(self) -> None:
        """Nobody wants the answer any more: the call is cancelled."""
        if self._pending is not None:
            self._pending.future.cancel()

    def expire(self) -> None:
        """The engine did not keep to the deadline that it was given."""
        self.reply = messages.error(504, "Timed out: the model did not answer in time.")
        self.give_up()

    def _done(self, future: "asyncio.Future[Any]") -> None:
        assert self._pending is not None
        finish = self._pending.finish
        self._pending = None
        try:
            reply = finish(future)
        except ServingError as failed:
            reply = messages.failure(failed)
        except asyncio.CancelledError:
            # Either the client has gone, and nobody reads this, or this process ends.
            reply = messages.failure(ServingError("The server is ending.", Code.UNAVAILABLE))
        except Exception as failed:
            reply = server_error(failed)
        if self.reply is None:
            self.reply = reply
            self._send()


def server_error(failed: Exception) -> Reply:
    """The reply to a bug. The cause is for the server's log only: it may name anything."""
    log.error("a request failed; this is a bug, please report it", exc_info=failed)
    return messages.error(500, "The server failed. Its log says how.")


class ModelCalls:
    """Finds models and starts their calls, for all APIs of a server."""

    def __init__(self, backend: ModelBackend, limits: Limits) -> None:
        self._backend = backend
        self._limits = limits
        self._catalogue: Catalogue | None = None
        self._found: dict[tuple[str, int | None, str | None], Version] = {}

    def find(self, target: tuple[str, int | None, str | None]) -> Version:
        """The version that a name, a number and a label mean now. Raises ServingError."""
        if self._backend.catalogue is not self._catalogue or len(self._found) > _REMEMBERED:
            self._catalogue = self._backend.catalogue
            self._found.clear()
        version = self._found.get(target)
        if version is None:
            version = self._found[target] = self._backend.catalogue.find(*target)
        return version

    def admit(self, version: Version, request: Request) -> None:
        """Raises what a call would be refused with, before its body is parsed."""
        self._backend.admit(version, request.received + self._limits.call)

    def start(
        self,
        version: Version,
        signature: str,
        inputs: Arrays,
        request: Request,
        write: Callable[[Answer], Reply],
        outputs: tuple[str, ...] = (),
        api: str = "Predict",
    ) -> Pending:
        """Call a model; `write` makes the reply of its answer."""
        # Only the time is kept: a large body need not wait in memory for its answer.
        received = request.received
        deadline = received + self._limits.call
        future = asyncio.ensure_future(
            self._backend.infer(version, signature, inputs, outputs, deadline)
        )

        def finish(done: "asyncio.Future[Answer]") -> Reply:
            code = Code.INTERNAL
            try:
                reply = write(done.result())
                code = Code.OK
                return reply
            except ServingError as failed:
                code = Code(failed.code)
                raise
            except asyncio.CancelledError:
                code = Code.CANCELLED
                raise
            finally:
                self.count(version.model, api, received, code)

        return Pending(future, finish)

    def count(self, model: str, api: str, received: float, code: int) -> None:
        """Count a request that has ended, and how long it has taken."""
        self._backend.count(model, api, "REST", code, time.monotonic() - received)


def background(work: Coroutine[Any, Any, Reply]) -> Pending:
    """A reply that a task makes: it has to wait for more than one answer."""
    return Pending(asyncio.ensure_future(work), lambda done: done.result())
