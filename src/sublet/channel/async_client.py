"""A channel to one engine for a program that runs on asyncio: a front end, above all."""

import asyncio
import contextlib
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sublet.errors import ServingError

from . import peers
from .client_protocol import Answer, ClientProtocol
from .codes import Code
from .packets import Inbox, Outbox, Outgoing
from .records import EVENT, MOST_ROUTES, Malformed
from .tensors import Array


class AsyncClient:
    """One connection to an engine, used in the loop that opened it; calls of one turn of the loop
    share a packet."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.closed = False
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._inbox = Inbox(sock)
        self._outbox = Outbox(sock)
        self._protocol = ClientProtocol(self._put)
        self._flushing = self._behind = False
        self._loop.add_reader(sock.fileno(), self._read)

    @classmethod
    async def open(cls, path: str) -> "AsyncClient":
        """Connect to the engine that listens there. Raises ServingError if none does."""
        return cls(connect(path))

    def __len__(self) -> int:
        return len(self._protocol)

    @property
    def abandoned(self) -> int:
        """Bytes of calls that nobody waits for, and that the engine has not done with."""
        return self._protocol.abandoned

    @property
    def lent(self) -> int:
        return self._protocol.segments.lent

    @property
    def stale(self) -> bool:
        """Whether so many kinds of calls were made that a new connection should replace it."""
        return self._protocol.routes > MOST_ROUTES // 2

    def call(
        self,
        model: str,
        version: int | None,
        signature: str,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] = (),
        deadline: float | None = None,
        priority: int = 0,
    ) -> asyncio.Future[Answer]:
        """Call a model; the arrays must not be changed until the future is done. Cancelling it
        cancels the call. `deadline` is a time of `time.monotonic`."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        if self.closed:
            future.set_exception(gone())
            return future
        number = self._protocol.send_call(
            future, model, version, signature, inputs, outputs, deadline, priority
        )

        def cancel(done: asyncio.Future[Answer]) -> None:
            if done.cancelled() and not self.closed:
                self._protocol.cancel(number)

        future.add_done_callback(cancel)
        return future

    def ask(self, question: Mapping[str, Any]) -> asyncio.Future[dict[str, Any]]:
        """Ask the engine a question about itself, not about a model."""
        future: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        if self.closed:
            future.set_exception(gone())
            return future
        self._protocol.send_question(future, question)
        return future

    def buffer(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array that is sent without a copy."""
        return self._protocol.buffer(shape, np.dtype(dtype))

    def close(self) -> None:
        """Hang up; calls in flight fail."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._outbox.close()
        for future, error in self._protocol.fail(gone()):
            if not future.done():
                future.set_exception(error)

    def _put(self, record: Outgoing) -> None:
        self._outbox.put(record)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self.closed:
            return
        try:
            behind = not self._outbox.flush()
        except OSError:
            self.close()
            return
        # While the engine is behind, what comes meanwhile waits for the same wake-up.
        if behind and not self._behind:
            self._loop.add_writer(self._sock.fileno(), self._flush)
        elif self._behind and not behind:
            self._loop.remove_writer(self._sock.fileno())
        self._flushing = self._behind = behind

    def _read(self) -> None:
        try:
            while (packet := self._inbox.receive_nowait()) is not None:
                for future, result in self._protocol.receive(packet):
                    if future is EVENT or future.done():
                        continue  # Events are for the owner of the engine.
                    if isinstance(result, ServingError):
                        future.set_exception(result)
                    else:
                        future.set_result(result)
        except (EOFError, Malformed):
            self.close()


def connect(path: str) -> socket.socket:
    """A socket to the engine that listens there. Raises ServingError if none of this user does."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        sock.connect(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            sock.close()
        raise ServingError(f"No engine answers: {error.strerror}.", Code.UNAVAILABLE) from error
    if not peers.is_ours(sock):
        sock.close()
        raise ServingError(
            "An engine of another user listens there. Set SUBLET_HOME to a directory of your own.",
            Code.PERMISSION_DENIED,
        )
    return sock


def gone() -> ServingError:
    """The error of calls whose engine has ended."""
    return ServingError("The engine that had the model has ended.", Code.UNAVAILABLE)
