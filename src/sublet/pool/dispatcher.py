"""A thread that has calls done: it finds workers for them and listens until they are answered.

A seat of a process pool has one call at a time; the one seat of a thread or session pool has as
many as its worker has threads. It ends when there is nothing to do for a moment.
"""

import contextlib
import os
import select
import sys
import threading
from typing import TYPE_CHECKING, Any, Protocol

from sublet.errors import CallFailed, InternalError, SubletError, WorkerDied
from sublet.formats import pickle_transport
from sublet.inside import pool_worker
from sublet.pool.call import Call, death, failure
from sublet.pool.worker import WorkerHandle
from sublet.text import plain

if TYPE_CHECKING:
    from sublet.wire.messages import Ended

_LINGER_MS = 100


class DispatcherOwner(Protocol):
    """What a seat asks of its pool."""

    def next_call(self, seat: "Dispatcher") -> Call | None:
        """A call that waits; if there is none, the seat is woken when one comes."""

    def may_leave(self, seat: "Dispatcher") -> bool:
        """Whether nothing has come for it meanwhile; if so, it is not counted on any more."""

    def worker_for(self, seat: "Dispatcher", call: Call) -> WorkerHandle:
        """An idle worker, or a new one."""

    def keep(self, worker: WorkerHandle) -> None:
        """A worker that could do more, from a seat that ends."""


class Dispatcher:
    """One thread. `idle` is the pool's, under its lock."""

    def __init__(self, desk: DispatcherOwner, width: int, name: str) -> None:
        self.idle = False
        self.reasons: dict[int, str] = {}
        """Why calls of this seat wait."""
        self._desk = desk
        self._width = width
        self._workers: list[WorkerHandle] = []
        self._flights: dict[int, tuple[Call, WorkerHandle]] = {}
        """Calls that were taken and have no answer."""
        self._sent: set[int] = set()
        self._told: dict[int, dict[str, Any]] = {}
        """Failures for want of memory; how much would do is known when the worker has ended."""
        self._stopped = False
        self._linger = _LINGER_MS
        self._cancelled = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._waking = threading.Lock()
        # Not a daemon: at the interpreter's end what was submitted is done first.
        self.thread = threading.Thread(target=self._run, name=name, daemon=False)

    def wake(self) -> None:
        """There is something new."""
        with self._waking:
            # Once it is closed, its number may be another's.
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def finish(self, cancel: bool = False) -> None:
        """The pool is closed: do not wait for more when all is done, or let go what waits."""
        self._linger = 0
        self._cancelled = cancel
        self.wake()

    def stop(self) -> None:
        """End all workers now; their calls fail."""
        self._stopped = True
        self._linger = 0
        self.wake()

    def adopt(self, worker: WorkerHandle) -> None:
        """Watch this worker too; before the thread starts, or from within it."""
        self._workers.append(worker)

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:
            bug = InternalError(f"A thread of the pool failed: {error!r}.", "Please report it.")
            bug.__cause__ = error
            self._end_all(bug)
            while (call := self._desk.next_call(self)) or not self._desk.may_leave(self):
                if call is not None:
                    call.fail(bug)
            with contextlib.suppress(Exception):
                sys.excepthook(type(error), error, error.__traceback__)
        finally:
            with self._waking:
                os.close(self._wake)
                self._wake = -1

    def _turn(self) -> bool:
        """Take what waits, then listen; False when there is nothing left to do."""
        if self._stopped:
            self._end_all(WorkerDied("The pool was ended while the call ran.", "Make a new one."))
        self._drop_cancelled()
        while len(self._flights) < self._width and (call := self._desk.next_call(self)):
            self._take(call)
        if not self._linger and not self._flights:
            self._dismiss_all()
        busy = bool(self._flights) or any(worker.leaving for worker in self._workers)
        heard = self._listen(None if busy else self._linger)
        if busy or heard or not self._desk.may_leave(self):
            return True
        self._put_away()
        return False

    def _dismiss_all(self) -> None:
        """Let our workers go, and stay until they are gone. Who waits for a lease needs none."""
        for worker in list(self._workers):
            if not worker.ready:
                self._workers.remove(worker)
                worker.close()
            elif not worker.leaving:
                worker.dismiss()

    def _take(self, call: Call) -> None:
        try:
            worker = self._own_worker(call) or self._desk.worker_for(self, call)
        except Exception as error:
            call.fail(error)
            return
        if worker not in self._workers:
            self._workers.append(worker)
        self._flights[call.number] = call, worker
        if worker.ready:
            self._send(call, worker)
        else:
            # It may be cancelled while it waits for a lease.
            call.future.add_done_callback(lambda _: self.wake())

    def _drop_cancelled(self) -> None:
        """Calls that wait for a lease and are not wanted any more."""
        for call, worker in list(self._flights.values()):
            if call.number in self._sent or worker.ready:
                continue
            if self._cancelled:
                call.future.cancel()
            if call.future.cancelled():
                self._land(call)
                call.begin()
                if all(its is not worker for _, its in self._flights.values()):
                    self._workers.remove(worker)
                    worker.close()

    def _own_worker(self, call: Call) -> WorkerHandle | None:
        """One that we have, if the call has no terms of its own."""
        if call.memory is not None:
            return None
        return next((worker for worker in self._workers if not worker.leaving), None)

    def _send(self, call: Call, worker: WorkerHandle) -> None:
        """Its worker has a lease: from here on the call runs."""
        self._sent.add(call.number)
        if not call.begin():
            self._land(call)
            self._spare(worker)
            return
        try:
            worker.send(call.number, call.pack())
        except Exception as error:
            self._land(call)
            call.fail(error)
            self._spare(worker)

    def _spare(self, worker: WorkerHandle) -> None:
        """The call it was meant for does not come; one that serves a single call is not needed."""
        if not worker.reusable:
            worker.dismiss()

    def _land(self, call: Call) -> None:
        self._flights.pop(call.number, None)
        self._sent.discard(call.number)
        self._told.pop(call.number, None)
        self.reasons.pop(call.number, None)

    def _listen(self, patience: int | None) -> bool:
        """Wait for the broker, the workers or the pool; whether anything was heard."""
        poll = select.poll()
        sources: dict[int, WorkerHandle] = {}
        poll.register(self._wake, select.POLLIN)
        for one in self._workers:
            for number in (one.fileno(), one.channel.fileno()):
                sources[number] = one
                poll.register(number, select.POLLIN)
        heard = poll.poll(patience)
        if (self._wake, select.POLLIN) in heard:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        for number, _ in heard:
            worker = sources.get(number)
            # One that was seen off a moment ago has no descriptors any more.
            if worker is not None and worker in self._workers:
                if number == worker.channel.fileno():
                    self._hear_answers(worker)
                else:
                    self._hear(worker)
        return bool(heard)

    def _hear(self, worker: WorkerHandle) -> None:
        """The broker has something to say about a worker."""
        attempts = worker.attempts
        try:
            ended = worker.hear()
        except SubletError as error:
            self._lose(worker, error)
            return
        # A worker may say its last word and go: its answers come before the news of its end.
        self._hear_answers(worker)
        if worker not in self._workers:
            return
        if ended is not None:
            self._see_off(worker, ended)
            return
        again = worker.attempts > attempts
        if again:
            worker.leaving = False
        for call, its in list(self._flights.values()):
            if its is not worker:
                continue
            if again:
                # What the last attempt had not done, the next one does.
                self._sent.discard(call.number)
                self._told.pop(call.number, None)
            if worker.ready and call.number not in self._sent:
                self._send(call, worker)

    def _hear_answers(self, worker: WorkerHandle) -> None:
        try:
            while (packet := worker.receive_nowait()) is not None:
                self._hear_answer(worker, packet)
        except pickle_transport.NoPacket:
            number = pool_worker.CHANNEL
            what = f"The worker of this call wrote to descriptor {number}, which is Sublet's."
            self._lose(worker, CallFailed(what, "Have the function open descriptors of its own."))

    def _hear_answer(self, worker: WorkerHandle, packet: pickle_transport.PicklePacket) -> None:
        kind = packet.kind & ~pool_worker.LAST
        call, its = self._flights.get(packet.call, (None, None))
        if kind != pool_worker.TOLD and (call is None or its is not worker):
            raise pickle_transport.NoPacket(f"there is no call {packet.call}")
        if packet.kind & pool_worker.LAST:
            worker.retire()
        if kind == pool_worker.TOLD:
            print(
                f"sublet: {plain(str(pickle_transport.unpack(packet)))}",
                file=sys.stderr,
                flush=True,
            )
            return
        assert call is not None
        worker.served += 1
        if kind == pool_worker.RESULT:
            self._land(call)
            call.answer(packet)
            return
        told = pickle_transport.unpack(packet)
        if told["memory"] and worker.leaving:
            self._told[call.number] = told
        else:
            self._land(call)
            call.fail(failure(call, told))

    def _see_off(self, worker: WorkerHandle, ended: "Ended") -> None:
        """A worker has ended; so have the calls that it had."""
        unread = worker.unread()
        self._workers.remove(worker)
        worker.close()
        for call, its in list(self._flights.values()):
            if its is not worker:
                continue
            told = self._told.get(call.number)
            self._land(call)
            if told is not None:
                call.fail(failure(call, told, ended))
            elif call.number in unread and worker.served:
                # It ended after its last answer and before it had seen this call.
                self._take(call)
            else:
                call.fail(death(call.name, ended))

    def _lose(self, worker: WorkerHandle, error: SubletError) -> None:
        """The broker refused its job, or none can be had."""
        self._workers.remove(worker)
        worker.close()
        for call, its in list(self._flights.values()):
            if its is worker:
                self._land(call)
                call.fail(error)

    def _end_all(self, error: BaseException) -> None:
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        for call, _ in list(self._flights.values()):
            self._land(call)
            call.fail(error)

    def _put_away(self) -> None:
        """The seat ends: whoever of its workers could do more is the pool's."""
        for worker in self._workers:
            self._desk.keep(worker)
