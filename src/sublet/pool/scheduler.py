"""What a pool has besides its public methods: waiting calls, dispatchers, and idle workers."""

import os
import threading
from collections import deque

from msgspec.structs import replace

from sublet.errors import BadRequest
from sublet.pool.call import Call
from sublet.pool.dispatcher import Dispatcher
from sublet.pool.worker import PoolWorker, StartWorker, Terms


class Scheduler:
    """Hands waiting calls, oldest first, to at most `most` dispatchers of `width` calls each.

    May be used from any thread. Without references, and so without calls, it closes idle workers.
    """

    def __init__(self, terms: Terms, most: int, width: int, start: StartWorker) -> None:
        self.terms = terms
        self._start = start
        self.closed = False
        self._most = most
        self._width = width
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: deque[Call] = deque()
        self._dispatchers: list[Dispatcher] = []
        self._idle: list[PoolWorker] = []

    def __del__(self) -> None:
        if self._pid == os.getpid():
            for worker in self._idle:
                worker.close()

    def __len__(self) -> int:
        """The number of waiting calls."""
        return len(self._waiting)

    def put(self, call: Call) -> None:
        """Queue a call, and see to it that a dispatcher takes it."""
        with self._lock:
            self._check_usable()
            self._waiting.append(call)
            self._wake_a_dispatcher()

    def reason(self) -> str:
        """Why a call waits for a lease; empty if none does."""
        with self._lock:
            reasons = [one for it in self._dispatchers for one in it.reasons.values()]
        return reasons[0] if reasons else ""

    def shutdown(self, cancel: bool) -> list[threading.Thread]:
        """Take no more calls; the threads that end when all workers have ended."""
        with self._lock:
            self.closed = True
            idle, self._idle = self._idle, []
            cancelled = self._take_waiting() if cancel else []
            if idle:
                self._dismiss(idle)
            for dispatcher in self._dispatchers:
                dispatcher.finish(cancel)
            threads = [dispatcher.thread for dispatcher in self._dispatchers]
        _cancel(cancelled)
        return threads if self._pid == os.getpid() else []

    def terminate(self) -> None:
        """Cancel waiting calls and end all workers; the calls that run fail."""
        with self._lock:
            self.closed = True
            cancelled = self._take_waiting()
            for worker in self._idle:
                worker.close()
            self._idle.clear()
            for dispatcher in self._dispatchers:
                dispatcher.stop()
        _cancel(cancelled)

    def take(self, dispatcher: Dispatcher) -> Call | None:
        """The next call; without one, the dispatcher counts as idle and is woken for the next."""
        with self._lock:
            while self._waiting:
                call = self._waiting.popleft()
                if not call.future.cancelled():
                    return call
                call.begin()  # Notifies those who wait for a cancelled call.
            dispatcher.idle = True
            return None

    def remove(self, dispatcher: Dispatcher) -> bool:
        """Let a dispatcher end; False if a call has come meanwhile."""
        with self._lock:
            if self._waiting:
                return False
            self._dispatchers.remove(dispatcher)
            return True

    def worker_for(self, call: Call, reasons: dict[int, str]) -> PoolWorker:
        """An idle worker, or a new one, which keeps in `reasons` why it waits."""
        terms = self.terms
        if call.memory is not None:
            terms = replace(terms, memory=call.memory, calls=1)
        elif terms.calls != 1:
            with self._lock:
                if self._idle:
                    return self._idle.pop()
        number = call.number

        # Holds neither us nor the dispatcher: an idle worker must not keep its pool alive.
        def on_wait(reason: str) -> None:
            if reason:
                reasons[number] = reason
            else:
                reasons.pop(number, None)

        return self._start(terms, call.name, on_wait)

    def put_back(self, worker: PoolWorker) -> None:
        """Keep a worker that can take more calls, from a dispatcher that ends."""
        with self._lock:
            if not self.closed:
                self._idle.append(worker)
            else:
                self._dismiss([worker])

    def _wake_a_dispatcher(self) -> None:
        for dispatcher in self._dispatchers:
            if dispatcher.idle:
                dispatcher.idle = False
                dispatcher.wake()
                return
        if len(self._dispatchers) >= self._most:
            return
        name = f"sublet-pool-{len(self._dispatchers)}"
        try:
            self._add(Dispatcher(self, self._width, name))
        except OSError:
            # No descriptor is left: the dispatchers that exist have to do.
            if not self._dispatchers:
                self._waiting.pop()
                raise

    def _add(self, dispatcher: Dispatcher) -> None:
        self._dispatchers.append(dispatcher)
        dispatcher.thread.start()

    def _dismiss(self, workers: list[PoolWorker]) -> None:
        """Let idle workers end, followed by a dispatcher that takes no calls."""
        dispatcher = Dispatcher(self, 0, "sublet-pool-end")
        for worker in workers:
            worker.dismiss()
            dispatcher.adopt(worker)
        self._add(dispatcher)

    def _take_waiting(self) -> list[Call]:
        calls = list(self._waiting)
        self._waiting.clear()
        return calls

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise BadRequest(
                f"This pool belongs to process {self._pid}, which forked this one.",
                "Make a pool in this process.",
            )
        if self.closed:
            # The error and words of other executors, which programs may expect.
            raise RuntimeError("cannot schedule new futures after shutdown")


def _cancel(calls: list[Call]) -> None:
    """Never called with the lock held: a callback of a future may use the pool."""
    for call in calls:
        call.future.cancel()
        call.begin()
