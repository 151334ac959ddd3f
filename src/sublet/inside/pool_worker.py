"""The program of a pool's worker: calls come in through descriptor 3, results go back.

    client ──OPENING, CALL, CALL …──▶ worker ──RESULT or FAILURE, TOLD──▶ client

It reads both the opening and its first call before it runs anything, so that a client that is
told of another attempt knows what to send again. A call that fails for want of memory ends the
worker, as its allocator cannot be trusted any more; all else that a function does ends its own
call only. Threads that a function leaves behind do not keep the worker from ending.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing.process
import os
import pickle
import socket
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

from ..formats import lease, oom_evidence, pickle_transport
from . import allocator, measure, oom
from .isolation.thread_runner import CallOutcome, ThreadRunner

CHANNEL = 3
"""The descriptor of the worker's end."""
OPENING, CALL, RESULT, FAILURE, TOLD = range(1, 6)
LAST = 0x80
"""Set in the kind of an answer after which the worker takes no more calls."""
_GROWTH = 64 << 20
"""Bytes beside TensorFlow's pool, for each thread, that a reused worker may gain after its first
call before it is replaced. A new one costs some 50 ms; a training in Keras leaves 3 to 5 MiB."""
_WEIGH = 0.1
"""Seconds between two looks at that: a look takes longer than an empty call."""


def main() -> None:
    """Serve calls until the client has no more, or this worker has done its share."""
    channel = socket.socket(fileno=CHANNEL)
    channel.set_inheritable(False)
    opening, first = pickle_transport.receive(channel), pickle_transport.receive(channel)
    if opening is None or first is None:
        leave(0)
    setup = pickle.loads(opening.body)
    sys.path[:] = setup["path"] + [entry for entry in sys.path if entry not in setup["path"]]
    if setup["authkey"] is not None:
        multiprocessing.process.current_process().authkey = setup["authkey"]
    worker = _Worker(channel, setup)
    packet: pickle_transport.PicklePacket | None = first
    while packet is not None:
        worker.serve(packet)
        packet = pickle_transport.receive(channel)
    worker.close()


def leave(code: int) -> NoReturn:
    """End at once. What threads, exit handlers or TensorFlow still want to do is not waited for:
    the caller has its answer."""
    measure.mark_exit(code)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(code)


class _Worker:
    """Answers calls, one after another or by a crew of threads."""

    def __init__(self, channel: socket.socket, setup: dict[str, Any]) -> None:
        self._channel = channel
        self._pid = os.getpid()
        self._left = setup["calls"]
        """How many calls this worker still takes; endless if it is 0 at the start."""
        self._initializer: bytes | None = setup["initializer"]
        self._writing = threading.Lock()
        self._outside: int | None = None
        self._weighed = float("-inf")
        self._growth = _GROWTH * setup["threads"]
        self._crew: ThreadRunner | None = None
        if setup["isolation"] != "process":
            self._crew = ThreadRunner(
                setup["isolation"], setup["threads"], self._done, told=self._tell
            )

    def serve(self, packet: pickle_transport.PicklePacket) -> None:
        """Do one call, or give it to the crew."""
        number = packet.call
        try:
            if self._initializer is not None:
                initializer, arguments = pickle.loads(self._initializer)
                initializer(*arguments)
                self._initializer = None
            function, args, kwargs = pickle_transport.unpack(packet)
        except BaseException as error:
            self._fail(number, error, "unpack" if self._initializer is None else "initializer")
            return
        del packet
        if self._crew is not None:
            self._crew.start(number, function, args, kwargs)
            return
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            self._end_if_forked()
            self._fail(number, error, "call")
            return
        self._end_if_forked()
        self._answer(number, result)

    def close(self) -> NoReturn:
        """The client wants nothing more."""
        if self._crew is not None:
            self._crew.close()
        leave(0)

    def _done(self, number: int, outcome: CallOutcome) -> None:
        """A thread of the crew has finished a call."""
        if outcome.error is not None:
            self._fail(number, outcome.error, "call")
        else:
            self._answer(number, outcome.value)

    def _answer(self, number: int, result: Any) -> None:
        last = self._is_last()
        try:
            self._send(RESULT | last, number, pickle_transport.pack(result))
        except Exception as error:
            # It cannot be pickled, or there is no memory to send it in.
            self._fail(number, error, "result", last)
            return
        # A crew has other calls; it ends when the client, which has been told, sends no more.
        if last and self._crew is None:
            leave(0)

    def _fail(self, number: int, error: BaseException, where: str, last: int = 0) -> None:
        told = {"where": where, **_describe(error)}
        # After that: an error that is made again to try its pickle is noted as caught.
        memory = oom.note_uncaught(error) or _ran_out_unheard()
        told["memory"] = memory
        if memory:
            # A session tells of the graph first.
            told["message"] = oom.excerpt(told["message"])
        last = last or (LAST if memory and self._crew is None else self._is_last())
        self._send(FAILURE | last, number, pickle_transport.pack(told))
        if last and self._crew is None:
            leave(1)

    def _send(self, kind: int, number: int, parcel: pickle_transport.PickledObject) -> None:
        with self._writing:
            try:
                pickle_transport.send(self._channel, kind, number, parcel)
            except ConnectionError:
                leave(1)  # The client is gone.

    def _tell(self, line: str) -> None:
        self._send(TOLD, 0, pickle_transport.pack(line))

    def _is_last(self) -> int:
        """Whether the worker has done its share: enough calls, or too much memory left behind."""
        if self._left:
            self._left -= 1
            if not self._left:
                return LAST
        now = time.monotonic()
        if now < self._weighed + _WEIGH:
            return 0
        self._weighed = now
        outside = _outside_the_pool()
        if self._outside is None:
            self._outside = outside
        return LAST if outside > self._outside + self._growth else 0

    def _end_if_forked(self) -> None:
        """A function that forks comes back twice; its child has no call to answer."""
        if os.getpid() != self._pid:
            leave(0)


def _describe(error: BaseException) -> dict[str, Any]:
    """An exception in pieces, of which all but the first always arrive."""
    pickled: bytes | None = None
    with contextlib.suppress(BaseException):
        attempt = pickle_transport.in_one_piece(error)
        pickle.loads(attempt)
        pickled = attempt
    own = os.path.join(os.path.dirname(__file__), "")
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(own):
        trace = trace.tb_next
    return {
        "error": pickled,
        "kind": type(error).__name__,
        "message": _text(error),
        "trace": "".join(traceback.format_exception(type(error), error, trace)),
    }


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(it cannot be shown)"


def _ran_out_unheard() -> bool:
    """Whether the allocator's last failure was told in other words than "out of memory"."""
    held = lease.current()
    return held is not None and oom_evidence.read_evidence(held.dir).unheard


def _outside_the_pool() -> int:
    """Bytes of this process that are neither shared nor TensorFlow's tensors."""
    with open("/proc/self/statm", encoding="ascii") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    held = lease.current()
    used = allocator.usage(held) if held is not None else None
    own = (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return own - (used[1] if used is not None else 0)


if __name__ == "__main__":
    main()
