"""A thread that takes calls, finds workers for them, and listens until they are answered.

A dispatcher of a process pool has one call at a time; the only one of a thread or session pool has
as many as its worker has threads. It ends when it has been idle for a moment.
"""

import contextlib
import os
import select
import sys
import threading
from typing import TYPE_CHECKING, Any

from sublet.errors import CallFailed, InternalError, NodeLost, SubletError, WorkerDied
from sublet.formats import pickle_transport
from sublet.pool.call import Call, death, failure
from sublet.pool.worker import PoolWorker
from sublet.text import plain

if TYPE_CHECKING:
    from sublet.pool.scheduler import Scheduler
    from sublet.wire.messages import Ended

_LINGER_MS = 100


class Dispatcher:
    """One thread with at most `width` calls. The scheduler owns `idle`, under its lock."""

    def __init__(self, scheduler: "Scheduler", width: int, name: str) -> None:
        self.idle = False
        self.reasons: dict[int, str] = {}
        """Why calls wait for a lease, by their numbers."""
        self._scheduler = scheduler
        self._width = width
        self._workers: list[PoolWorker] = []
        self._calls: dict[int, tuple[Call, PoolWorker]] = {}
        """Calls without an answer, each with its worker."""
        self._sent: set[int] = set()
        self._out_of_memory: dict[int, dict[str, Any]] = {}
        """Reported failures; what size to suggest is known when the worker has ended."""
        self._stopped = False
        self._linger = _LINGER_MS
        self._cancelled = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._waking = threading.Lock()
        # Not a daemon: submitted calls are done before the interpreter ends.
        self.thread = threading.Thread(target=self._run, name=name, daemon=False)

    def wake(self) -> None:
        """Have the thread look for something new."""
        with self._waking:
            # A closed descriptor's number may be in use again.
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def finish(self, cancel: bool = False) -> None:
        """End when all calls are done, or, with `cancel`, when those that run are."""
        self._linger = 0
        self._cancelled = cancel
        self.wake()

    def stop(self) -> None:
        """End all workers now; their calls fail."""
        self._stopped = True
        self._linger = 0
        self.wake()

    def adopt(self, worker: PoolWorker) -> None:
        """Follow this worker too. Called before the thread starts, or on it."""
        self._workers.append(worker)

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:
            bug = InternalError(f"A thread of the pool failed: {error!r}.", "Please report it.")
            bug.__cause__ = error
            self._end_all(bug)
            while (call := self._scheduler.take(self)) or not self._scheduler.remove(self):
                if call is not None:
                    call.fail(bug)
            with contextlib.suppress(Exception):
                sys.excepthook(type(error), error, error.__traceback__)
        finally:
            with self._waking:
                os.close(self._wake)
                self._wake = -1

    def _step(self) -> bool:
        """Take waiting calls, then listen; False when there is nothing left to do."""
        if self._stopped:
            self._end_all(WorkerDied("The pool was ended while the call ran.", "Make a new one."))
        self._drop_cancelled()
        while len(self._calls) < self._width and (call := self._scheduler.take(self)):
            self._take(call)
        if not self._linger and not self._calls:
            self._dismiss_all()
        busy = bool(self._calls) or any(worker.leaving for worker in self._workers)
        heard = self._listen(None if busy else self._linger)
        if busy or heard or not self._scheduler.remove(self):
            return True
        self._return_workers()
        return False

    def _dismiss_all(self) -> None:
        """Let our workers end. One that waits for a lease is not needed any more."""
        for worker in list(self._workers):
            if not worker.ready:
                self._workers.remove(worker)
                worker.close()
            elif not worker.leaving:
                worker.dismiss()

    def _take(self, call: Call) -> None:
        try:
            worker = self._own_worker(call) or self._scheduler.worker_for(call, self.reasons)
        except Exception as error:
            call.fail(error)
            return
        if worker not in self._workers:
            self._workers.append(worker)
        self._calls[call.number] = call, worker
        if worker.ready:
            self._send(call, worker)
        else:
            # Cancelling a call that waits for a lease has to wake us.
            call.future.add_done_callback(lambda _: self.wake())

    def _drop_cancelled(self) -> None:
        """Drop cancelled calls that wait for a lease."""
        for call, worker in list(self._calls.values()):
            if call.number in self._sent or worker.ready:
                continue
            if self._cancelled:
                call.future.cancel()
            if call.future.cancelled():
                self._forget(call)
                call.begin()
                if all(its is not worker for _, its in self._calls.values()):
                    self._workers.remove(worker)
                    worker.close()

    def _own_worker(self, call: Call) -> PoolWorker | None:
        """This dispatcher's worker, unless the call asks for its own memory."""
        if call.memory is not None:
            return None
        return next((worker for worker in self._workers if not worker.leaving), None)

    def _send(self, call: Call, worker: PoolWorker) -> None:
        """Send a call to its worker, which has a lease: the call runs now."""
        self._sent.add(call.number)
        if not call.begin():
            self._forget(call)
            self._spare(worker)
            return
        try:
            worker.send(call.number, call.pack())
        except Exception as error:
            self._forget(call)
            call.fail(error)
            self._spare(worker)

    def _spare(self, worker: PoolWorker) -> None:
        """Its call was not sent: a worker for a single call is not needed any more."""
        if not worker.reusable:
            worker.dismiss()

    def _forget(self, call: Call) -> None:
        self._calls.pop(call.number, None)
        self._sent.discard(call.number)
        self._out_of_memory.pop(call.number, None)
        self.reasons.pop(call.number, None)

    def _listen(self, timeout: int | None) -> bool:
        """Wait up to `timeout` ms for the broker, workers or scheduler; whether anything came."""
        poll = select.poll()
        sources: dict[int, PoolWorker] = {}
        poll.register(self._wake, select.POLLIN)
        for one in self._workers:
            for number in (one.fileno(), one.answers()):
                sources[number] = one
                poll.register(number, select.POLLIN)
        heard = poll.poll(timeout)
        if (self._wake, select.POLLIN) in heard:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        for number, _ in heard:
            worker = sources.get(number)
            # A worker that has just ended has no descriptors any more.
            if worker is not None and worker in self._workers:
                if number == worker.fileno():
                    self._follow(worker)
                else:
                    self._receive_answers(worker)
        return bool(heard)

    def _follow(self, worker: PoolWorker) -> None:
        """Take in what the broker says about a worker."""
        attempts = worker.attempts
        try:
            ended = worker.hear()
        except SubletError as error:
            self._lose(worker, error)
            return
        # Answers first: a worker may have sent its last one and ended.
        self._receive_answers(worker)
        if worker not in self._workers:
            return
        if ended is not None:
            self._end_worker(worker, ended)
            return
        again = worker.attempts > attempts
        if again:
            worker.leaving = False
        for call, its in list(self._calls.values()):
            if its is not worker:
                continue
            if again:
                # The next attempt does what the last one had not done.
                self._sent.discard(call.number)
                self._out_of_memory.pop(call.number, None)
            if worker.ready and call.number not in self._sent:
                self._send(call, worker)

    def _receive_answers(self, worker: PoolWorker) -> None:
        try:
            while (packet := worker.receive_nowait()) is not None:
                self._receive_answer(worker, packet)
        except pickle_transport.NoPacket:
            number = pickle_transport.CHANNEL
            what = f"The worker of this call wrote to descriptor {number}, which is Sublet's."
            self._lose(worker, CallFailed(what, "Have the function open descriptors of its own."))

    def _receive_answer(self, worker: PoolWorker, packet: pickle_transport.PicklePacket) -> None:
        kind = packet.kind & ~pickle_transport.LAST
        call, its = self._calls.get(packet.call, (None, None))
        if kind != pickle_transport.MESSAGE and (call is None or its is not worker):
            raise pickle_transport.NoPacket(f"there is no call {packet.call}")
        if packet.kind & pickle_transport.LAST:
            worker.retire()
        if kind == pickle_transport.MESSAGE:
            print(
                f"sublet: {plain(str(pickle_transport.unpack(packet)))}",
                file=sys.stderr,
                flush=True,
            )
            return
        assert call is not None
        worker.served += 1
        if kind == pickle_transport.RESULT:
            self._forget(call)
            call.answer(packet)
            return
        report = pickle_transport.unpack(packet)
        if report["memory"] and worker.leaving:
            self._out_of_memory[call.number] = report
        else:
            self._forget(call)
            call.fail(failure(call, report))

    def _end_worker(self, worker: PoolWorker, ended: "Ended") -> None:
        """A worker has ended, and with it the calls that it had."""
        unread = worker.unread()
        self._workers.remove(worker)
        worker.close()
        for call, its in list(self._calls.values()):
            if its is not worker:
                continue
            report = self._out_of_memory.get(call.number)
            self._forget(call)
            if report is not None:
                call.fail(failure(call, report, ended))
            elif call.number in unread and worker.served:
                # It ended after its last answer, without having read this call.
                self._take(call)
            else:
                call.fail(death(call.name, ended))

    def _lose(self, worker: PoolWorker, error: SubletError) -> None:
        """The broker has refused its job or is out of reach, its node is gone, or it broke the
        protocol."""
        self._workers.remove(worker)
        worker.close()
        for call, its in list(self._calls.values()):
            if its is not worker:
                continue
            sent = call.number in self._sent
            self._forget(call)
            if not isinstance(error, NodeLost):
                call.fail(error)
            elif sent:
                call.fail(WorkerDied(f"{call.name}() had begun. {error.message}", error.hint))
            else:
                self._take(call)  # It had not begun: it goes elsewhere.

    def _end_all(self, error: BaseException) -> None:
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        for call, _ in list(self._calls.values()):
            self._forget(call)
            call.fail(error)

    def _return_workers(self) -> None:
        """Give the workers that can take more calls back to the scheduler."""
        for worker in self._workers:
            self._scheduler.put_back(worker)
