"""A request that was read, until its reply is there."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.serving.frontend.rest import messages
from sublet.serving.frontend.rest.messages import Head, Pending, Reply

log = logging.getLogger(__name__)


class Exchange:
    """A request that was read, and its reply once there is one."""

    __slots__ = ("_pending", "_send", "head", "reply", "until")

    def __init__(self, send: Callable[[], None], head: Head, until: float) -> None:
        self.head = head
        self.reply: Reply | None = None
        self.until = until
        self._send = send
        self._pending: Pending | None = None

    def wait(self, pending: Pending) -> None:
        """The reply comes when a future is done."""
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
            reply = messages.failure(ServingError("The call was cancelled.", Code.CANCELLED))
        except Exception as failed:
            reply = ours(failed)
        if self.reply is None:
            self.reply = reply
            self._send()


def ours(failed: Exception) -> Reply:
    """The reply when something failed that should not have. How is for the server's log: it may
    name anything."""
    log.error("a request failed; this is a bug, please report it", exc_info=failed)
    return messages.error(500, "The server failed. Its log says how.")
