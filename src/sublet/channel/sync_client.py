"""A channel to one engine for threads: calls that block, and calls that give a future.

There is no thread behind it as long as nobody wants a future: whoever waits for an answer reads
the socket, and hands the others theirs.
"""

import contextlib
import dataclasses
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

import numpy as np

from sublet.errors import ServingError

from . import records
from .async_client import gone
from .client_protocol import Answer, ClientProtocol
from .codes import Code
from .packets import Inbox, Outbox, Outgoing
from .records import EVENT, Malformed
from .tensors import Array

_LINGER = 1.0


class Unsent(ServingError):
    """Nothing has happened: the call can be sent to another engine."""

    def __init__(self, message: str = gone().message, code: int = Code.UNAVAILABLE) -> None:
        super().__init__(message, code)


@dataclasses.dataclass(slots=True, eq=False)
class _Waiter:
    """A call that somebody waits for."""

    future: Future[Any] | None = None
    done: bool = False
    result: Any = None
    wake: threading.Event | None = None


class SyncClient:
    """One connection that threads may share. It must not be used in a forked child."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.closed = False
        self.on_event: Callable[[dict[str, Any]], None] | None = None
        """Called with what the engine says on its own, in whatever thread reads."""
        self._sock = sock
        weakref.finalize(self, sock.close).atexit = False
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._inbox = Inbox(sock)
        self._outbox = Outbox(sock)
        self._protocol = ClientProtocol(self._outbox.put)
        self._reading = threading.Lock()
        self._reads_here = -1
        """The thread that has just read something, and calls back."""
        self._blocked: dict[_Waiter, None] = {}  # Those who wait while another reads.
        self._futures = 0
        self._lock = threading.Lock()
        self._reader: threading.Thread | None = None
        self._wanted = threading.Condition(self._lock)

    def call(
        self,
        model: str,
        version: int | None,
        signature: str,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] = (),
        deadline: float | None = None,
        priority: int = 0,
    ) -> Answer:
        """Call a model, and wait. Raises ServingError; Unsent if the engine was gone before."""
        waiter = _Waiter()
        number = self._protocol.send_call(
            waiter, model, version, signature, inputs, outputs, deadline, priority
        )
        if not self._send(deadline):
            raise Unsent
        self._wait(waiter, number, deadline)
        return cast("Answer", waiter.result)

    def submit(
        self,
        model: str,
        version: int | None,
        signature: str,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] = (),
        deadline: float | None = None,
        priority: int = 0,
    ) -> Future[Answer]:
        """Call a model; the arrays must not be changed until the future is done. Cancelling it
        cancels the call, unless it runs already. Its exception is Unsent if the engine was gone
        before."""
        future: Future[Answer] = Future()
        self._expect_future()
        try:
            number = self._protocol.send_call(
                _Waiter(future), model, version, signature, inputs, outputs, deadline, priority
            )
        except BaseException:
            with self._lock:
                self._futures -= 1  # Else the reader would wait for it for ever.
            raise
        if not self._send(deadline):
            future = Future()  # The other one has failed with those in flight.
            future.set_exception(Unsent())
            return future
        future.add_done_callback(partial(self._cancelled, number))
        return future

    def ask(self, question: Mapping[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """Ask the engine itself, and wait. Raises ServingError."""
        waiter = _Waiter()
        deadline = None if timeout is None else time.monotonic() + timeout
        number = self._protocol.send_question(waiter, question)
        self._send(deadline)
        self._wait(waiter, number, deadline)
        return cast("dict[str, Any]", waiter.result)

    def send_recorder(self, memory: int) -> None:
        """Hand the engine the memory of its flight recorder, a memfd that stays the caller's,
        too."""
        record = records.plain(records.RECORDER)
        self._outbox.put(Outgoing((record,), len(record), (os.dup(memory),)))
        self._send()

    def listen(self) -> None:
        """Have a thread that reads from now on, so that events are heard."""
        self._expect_future()

    def buffer(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array that is sent without a copy."""
        return self._protocol.buffer(shape, np.dtype(dtype))

    def close(self) -> None:
        """Hang up; calls in flight fail."""
        self._lose()
        if self._reads_here != threading.get_ident():
            with self._reading:
                self._sock.close()

    def _lose(self) -> None:
        """Nothing more can be sent or heard; may be found out by any thread."""
        with self._lock:
            self.closed = True
            self._wanted.notify_all()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # Wakes who reads; closing it would not.
        self._outbox.close()
        for waiter, error in self._protocol.fail(gone()):
            self._finish(waiter, error)

    def _send(self, deadline: float | None = None) -> bool:
        """Send all that was said, or as much as the engine takes by then; False if it has gone."""
        try:
            while not self._outbox.flush():
                # The engine is behind. It always reads, so this is short, unless it is stopped.
                self._sock_ready(select.POLLOUT)
                if deadline is not None and time.monotonic() >= deadline:
                    break
        except (OSError, ValueError):
            self._lose()
            return False
        return True

    def _sock_ready(self, events: int) -> None:
        poll = select.poll()
        poll.register(self._sock, events)
        poll.poll(100)

    def _wait(self, waiter: _Waiter, number: int, deadline: float | None) -> None:
        if self.closed:
            self._lose()
        while not waiter.done:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                self._protocol.cancel(number)
                self._send(deadline)
                self._wake_one()  # It may have been our turn to read.
                raise ServingError("The answer did not come in time.", Code.DEADLINE_EXCEEDED)
            if self._reading.acquire(blocking=False):
                try:
                    while not waiter.done and not self.closed:
                        if not self._read(left) and left is not None:
                            break
                finally:
                    self._reading.release()
                    self._wake_one()
                if self.closed and not waiter.done:
                    waiter.done, waiter.result = True, gone()
            else:
                self._sleep(waiter, left)
        if isinstance(waiter.result, ServingError):
            raise waiter.result

    def _sleep(self, waiter: _Waiter, left: float | None) -> None:
        """Wait until it is done, or nobody reads any more."""
        waiter.wake = threading.Event()
        self._blocked[waiter] = None
        try:
            # Whoever read may have left before it could see us.
            if waiter.done or not self._reading.locked():
                return
            waiter.wake.wait(left)
        finally:
            self._blocked.pop(waiter, None)

    def _wake_one(self) -> None:
        """The thread that stops reading wakes another one to read on, if one waits."""
        for waiter in list(self._blocked):
            if not waiter.done and waiter.wake is not None:
                waiter.wake.set()
                return

    def _read(self, left: float | None) -> bool:
        """Hear what the engine says; False if nothing came in the time that is left."""
        if not self._poll.poll(None if left is None else max(0.0, left * 1000)):
            return False
        # What is called back may hang up, or send the next call and find nobody there.
        self._reads_here = threading.get_ident()
        try:
            while (packet := self._inbox.receive_nowait()) is not None:
                for waiter, result in self._protocol.receive(packet):
                    if waiter is EVENT:
                        if self.on_event is not None:
                            self.on_event(cast("dict[str, Any]", result))
                    else:
                        self._finish(waiter, result)
            if self._outbox.waiting:
                self._outbox.flush()  # That memory has come, or can go.
        except (EOFError, OSError, Malformed):
            self._lose()
        finally:
            self._reads_here = -1
        return True

    def _finish(self, waiter: _Waiter, result: Any) -> None:
        waiter.result = result
        waiter.done = True
        if waiter.wake is not None:
            waiter.wake.set()
        if waiter.future is not None:
            with self._lock:
                self._futures -= 1
            if not waiter.future.set_running_or_notify_cancel():
                return
            if isinstance(result, ServingError):
                waiter.future.set_exception(result)
            else:
                waiter.future.set_result(result)

    def _cancelled(self, number: int, future: Future[Answer]) -> None:
        """Tell the engine if its future was; nothing to do if the answer is here already."""
        if future.cancelled() and self._protocol.cancel(number):
            with self._lock:
                self._futures -= 1
            future.set_running_or_notify_cancel()  # Wakes whoever waits for it.
            self._send()

    def _expect_future(self) -> None:
        with self._lock:
            self._futures += 1
            if self._reader is None:
                self._reader = threading.Thread(
                    target=self._read_for_futures, name="sublet-channel", daemon=True
                )
                self._reader.start()
            self._wanted.notify_all()

    def _read_for_futures(self) -> None:
        """The thread: it ends when nobody has wanted it for a while, so that an unused client
        can go."""
        while True:
            with self._lock:
                if not self._futures and not self.closed:
                    self._wanted.wait(_LINGER)
                if self.closed or not self._futures:
                    self._reader = None
                    return
            with self._reading:
                if not self.closed:
                    self._read(None)
            self._wake_one()
