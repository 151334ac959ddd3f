"""The program of a pool's worker: calls come in through descriptor 3, results go back.

    pool ──OPENING, CALL, CALL …──▶ worker ──RESULT or FAILURE, MESSAGE──▶ pool

The worker reads the opening and its first call before it runs anything, so a pool whose worker is
attempted again knows what to send again. A call that runs out of memory ends the worker, because
its allocator cannot be trusted any more; any other failure ends only its own call. Threads that a
function leaves behind do not keep the worker from ending.
"""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import pickle
import socket
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

from ..formats import oom_evidence, pickle_transport
from . import allocator, current_lease, oom
from .isolation.thread_runner import CallOutcome, ThreadRunner
from .warm_start.ending import leave

_GROWTH = 64 << 20
"""Bytes outside TensorFlow's pool that a reused worker may gain after its first call, for each
thread, before it is replaced. A new worker costs some 50 ms; a Keras training leaves 3 to 5 MiB."""
_WEIGH_EVERY = 0.1
"""Seconds between two measurements of it: one takes longer than an empty call."""


def main() -> None:
    """Serve calls until the pool has no more, or this worker takes no more."""
    channel = socket.socket(fileno=pickle_transport.CHANNEL)
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


class _Worker:
    """Answers calls, one after another or in the threads of a `ThreadRunner`."""

    def __init__(self, channel: socket.socket, setup: dict[str, Any]) -> None:
        self._channel = channel
        self._pid = os.getpid()
        self._left = setup["calls"]
        """How many calls this worker still takes; 0 from the start means any number."""
        self._initializer: bytes | None = setup["initializer"]
        self._writing = threading.Lock()
        self._outside: int | None = None
        self._weighed = float("-inf")
        self._growth = _GROWTH * setup["threads"]
        self._runner: ThreadRunner | None = None
        if setup["isolation"] != "process":
            self._runner = ThreadRunner(
                setup["isolation"], setup["threads"], self._done, notify=self._notify
            )

    def serve(self, packet: pickle_transport.PicklePacket) -> None:
        """Run one call, or give it to the threads."""
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
        if self._runner is not None:
            self._runner.start(number, function, args, kwargs)
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
        """End after all calls have been answered: the pool sends no more."""
        if self._runner is not None:
            self._runner.close()
        leave(0)

    def _done(self, number: int, outcome: CallOutcome) -> None:
        """A thread has finished a call."""
        if outcome.error is not None:
            self._fail(number, outcome.error, "call")
        else:
            self._answer(number, outcome.value)

    def _answer(self, number: int, result: Any) -> None:
        last = self._is_last()
        try:
            self._send(pickle_transport.RESULT | last, number, pickle_transport.pack(result))
        except Exception as error:
            # It cannot be pickled, or there is no memory to send it in.
            self._fail(number, error, "result", last)
            return
        # Threads have other calls to finish; the pool knows, and will send no more.
        if last and self._runner is None:
            leave(0)

    def _fail(self, number: int, error: BaseException, where: str, last: int = 0) -> None:
        report = {"where": where, **_describe(error)}
        # Only now: pickling the error makes it anew, which is noted as a caught one.
        memory = oom.note_uncaught(error) or _ran_out_unheard()
        report["memory"] = memory
        if memory:
            # The message of a session begins with the graph.
            report["message"] = oom.excerpt(report["message"])
        last = last or (
            pickle_transport.LAST if memory and self._runner is None else self._is_last()
        )
        self._send(pickle_transport.FAILURE | last, number, pickle_transport.pack(report))
        if last and self._runner is None:
            leave(1)

    def _send(self, kind: int, number: int, packed: pickle_transport.PickledObject) -> None:
        with self._writing:
            try:
                pickle_transport.send(self._channel, kind, number, packed)
            except ConnectionError:
                leave(1)  # The pool is gone.

    def _notify(self, line: str) -> None:
        self._send(pickle_transport.MESSAGE, 0, pickle_transport.pack(line))

    def _is_last(self) -> int:
        """LAST if the worker takes no more calls: it has had enough, or gained too much memory."""
        if self._left:
            self._left -= 1
            if not self._left:
                return pickle_transport.LAST
        now = time.monotonic()
        if now < self._weighed + _WEIGH_EVERY:
            return 0
        self._weighed = now
        outside = _outside_the_pool()
        if self._outside is None:
            self._outside = outside
        return pickle_transport.LAST if outside > self._outside + self._growth else 0

    def _end_if_forked(self) -> None:
        """End a child that the function has forked: only its parent answers the call."""
        if os.getpid() != self._pid:
            leave(0)


def _describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain data; `error` is None if it cannot be pickled and read again."""
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
    """Whether an allocation has failed without an error that says "out of memory"."""
    held = current_lease.current()
    return held is not None and oom_evidence.read_evidence(held.dir).unheard


def _outside_the_pool() -> int:
    """Private bytes of this process that are not in TensorFlow's pool."""
    with open("/proc/self/statm", encoding="ascii") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    held = current_lease.current()
    used = allocator.usage(held) if held is not None else None
    own = (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return own - (used[1] if used is not None else 0)


if __name__ == "__main__":
    main()
