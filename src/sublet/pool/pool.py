"""`sublet.Pool`: functions in leased workers, as a `concurrent.futures.Executor`."""

import asyncio
import itertools
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from types import TracebackType
from typing import Any, Literal, TypeVar

from msgspec.structs import replace

from sublet import descriptors
from sublet.client.job_request import choice
from sublet.domain.memory_option import read_memory
from sublet.errors import BadRequest
from sublet.formats import pickle_transport
from sublet.pool.call import Call, name_of
from sublet.pool.chunk import Chunk, chunks
from sublet.pool.dispatcher import Dispatcher
from sublet.pool.progress import Bar
from sublet.pool.worker import Terms, WorkerHandle

T = TypeVar("T")
Isolation = Literal["process", "thread", "session"]
_ISOLATIONS = ("process", "thread", "session")


class Pool(Executor):
    """Calls functions in leased workers, as many at a time as fit.

    Each call has a worker of its own, forked warm, unless `reuse` is set: then a worker takes
    call after call (a number says how many), and is replaced when it has gained much memory.
    With `isolation="thread"` or `"session"` there is one worker with one lease, and calls run in
    its threads; a session pool gives each call a TF1 graph and session of its own.

    `gpu` is an index, a UUID or "any"; workers that may go to several GPUs are spread over them. In
    a program that runs under a lease, the workers' leases come out of that one.

    Takes the place of a `ProcessPoolExecutor` with its own arguments: `max_tasks_per_child` is
    another word for `reuse`, and `mp_context` says nothing here, as workers are started in
    Sublet's own way, as clean as spawned ones.

    May be used from any thread. What was submitted is done before the `with` block ends; on
    Ctrl-C what runs is ended.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        memory: str | int = "auto",
        *,
        isolation: Isolation = "process",
        reuse: bool | int = False,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        on_oom: Literal["fail", "grow"] = "fail",
        gpu: int | str | None = None,
        device: str | None = None,
        cpus: int | None = None,
        name: str | None = None,
        cold: bool = False,
        mp_context: object = None,
        max_tasks_per_child: int | None = None,
    ) -> None:
        if isolation not in _ISOLATIONS:
            raise BadRequest(
                f"isolation={isolation!r} is unknown.", "Write process, thread or session."
            )
        if max_workers is not None and max_workers < 1:
            raise BadRequest(f"max_workers={max_workers}: at least one.", "Leave it out for all.")
        if max_tasks_per_child is not None:
            if reuse is not False or max_tasks_per_child < 1:
                raise BadRequest(
                    f"max_tasks_per_child={max_tasks_per_child} with reuse={reuse}.",
                    "Say once how many calls a worker takes, at least one.",
                )
            reuse = max_tasks_per_child
        if reuse < 0:
            raise BadRequest(f"reuse={reuse}: calls for one worker.", "Write True or a number.")
        if initializer is not None and not callable(initializer):
            raise BadRequest("The initializer cannot be called.", "Name a function.")
        _refuse_broken_fork()
        workers = max_workers or len(os.sched_getaffinity(0))
        threads = isolation != "process"
        self._seats_at_most = 1 if threads else workers
        self._width = workers if threads else 1
        self._terms = Terms(
            memory=_memory(memory),
            name=name,
            isolation=isolation,
            threads=workers if threads else 1,
            calls=0 if threads or reuse is True else int(reuse) or 1,
            initializer=None if initializer is None else _packed(initializer, initargs),
            device=_device(gpu, device),
            cpus=cpus,
            on_oom=choice("on_oom", on_oom),
            cold=cold,
        )
        descriptors.raise_limit()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: deque[Call] = deque()
        self._seats: list[Dispatcher] = []
        self._threads: list[threading.Thread] = []
        self._idle: list[WorkerHandle] = []
        self._closed = False

    def submit(  # type: ignore[override]  # It takes `memory` besides.
        self, fn: Callable[..., T], /, *args: Any, memory: str | int | None = None, **kwargs: Any
    ) -> "Future[T]":
        """Call `fn(*args, **kwargs)` in a worker. `memory` is for this call alone; a function
        with a parameter of that name is given it with `functools.partial`."""
        if not callable(fn):
            raise BadRequest(f"{fn!r} cannot be called.", "Submit a function.")
        if memory is not None and self._terms.isolation != "process":
            raise BadRequest(
                f"All calls of a {self._terms.isolation} pool share one lease.",
                "Give the pool more memory, or use isolation='process'.",
            )
        asked = None if memory is None else _memory(memory)
        call = Call(next(self._numbers), fn, args, kwargs, asked)
        with self._lock:
            self._check_usable()
            self._waiting.append(call)
            self._call_a_seat()
        return call.future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        progress: bool = True,
    ) -> Iterator[T]:
        """Results in the order of the arguments. With `chunksize`, so many calls go to a worker
        at once. A bar shows the progress on a terminal or in a notebook, unless it is False."""
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        deadline = None if timeout is None else time.monotonic() + timeout
        bar = Bar(name_of(fn), self.reason, progress)
        rows = zip(*iterables, strict=False)
        futures: list[Future[Any]] = []
        if chunksize == 1:
            futures = [bar.follow(self.submit(fn, *row)) for row in rows]
        else:
            for chunk in chunks(rows, chunksize):
                futures.append(bar.follow(self.submit(Chunk(fn), chunk), len(chunk)))
        return _in_order(futures, deadline, bar, chunked=chunksize > 1)

    async def call_async(
        self, fn: Callable[..., T], /, *args: Any, memory: str | int | None = None, **kwargs: Any
    ) -> T:
        """`submit` and its result, in an event loop. Cancelling it cancels a call that waits."""
        return await asyncio.wrap_future(self.submit(fn, *args, memory=memory, **kwargs))

    async def map_async(self, fn: Callable[..., T], *iterables: Iterable[Any]) -> AsyncIterator[T]:
        """Results in the order of the arguments, in an event loop."""
        futures = [self.submit(fn, *row) for row in zip(*iterables, strict=False)]
        try:
            for future in futures:
                yield await asyncio.wrap_future(future)
        finally:
            for future in futures:
                future.cancel()

    def reason(self) -> str:
        """Why a call waits for a lease; empty if none does."""
        with self._lock:
            told = [reason for seat in self._seats for reason in seat.reasons.values()]
        return told[0] if told else ""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. With `wait`, return when all have ended and no worker is left."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            dropped = self._drop_waiting() if cancel_futures else []
            if idle:
                self._see_off(idle)
            for seat in self._seats:
                seat.finish(cancel_futures)
            threads = list(self._threads)
        _cancel(dropped)
        if wait and self._pid == os.getpid():
            for thread in threads:
                if thread is not threading.current_thread():
                    thread.join()

    def terminate_workers(self) -> None:
        """Cancel what waits, end what runs: those calls fail. The pool takes no more."""
        with self._lock:
            self._closed = True
            dropped = self._drop_waiting()
            for worker in self._idle:
                worker.close()
            self._idle.clear()
            for seat in self._seats:
                seat.stop()
        _cancel(dropped)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Literal[False]:
        if kind is not None and not issubclass(kind, Exception):
            # Ctrl-C reaches us only: workers are in sessions of their own.
            self.terminate_workers()
        self.shutdown(wait=True)
        return False

    def __del__(self) -> None:
        """A pool that nobody has any more holds no leases, closed or not."""
        if getattr(self, "_pid", 0) == os.getpid():
            for worker in self._idle:
                worker.close()

    async def __aenter__(self) -> "Pool":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Literal[False]:
        await asyncio.to_thread(self.__exit__, kind, error, trace)
        return False

    def __repr__(self) -> str:
        terms = self._terms
        state = "closed" if self._closed else f"{len(self._waiting)} calls wait"
        return f"<sublet.Pool {terms.isolation}, memory={terms.memory}, {state}>"

    # What seats ask of their pool.

    def next_call(self, seat: Dispatcher) -> Call | None:
        """A call that waits; if there is none, the seat is woken when one comes."""
        with self._lock:
            while self._waiting:
                call = self._waiting.popleft()
                if not call.future.cancelled():
                    return call
                call.begin()  # Whoever waits for it is told.
            seat.idle = True
            return None

    def may_leave(self, seat: Dispatcher) -> bool:
        """Whether nothing has come for this seat meanwhile; then it is not counted on any more."""
        with self._lock:
            if self._waiting:
                return False
            self._seats.remove(seat)
            self._threads.remove(seat.thread)
            return True

    def worker_for(self, seat: Dispatcher, call: Call) -> WorkerHandle:
        """An idle worker, or a new one."""
        terms = self._terms
        if call.memory is not None:
            terms = replace(terms, memory=call.memory, calls=1)
        elif terms.calls != 1:
            with self._lock:
                if self._idle:
                    return self._idle.pop()

        # Not the seat itself: an idle worker must not keep its pool alive.
        reasons, number = seat.reasons, call.number

        def told(reason: str) -> None:
            if reason:
                reasons[number] = reason
            else:
                reasons.pop(number, None)

        return WorkerHandle(terms, call.name, told)

    def keep(self, worker: WorkerHandle) -> None:
        """A worker that could do more, from a seat that ends."""
        with self._lock:
            if not self._closed:
                self._idle.append(worker)
            else:
                self._see_off([worker])

    def _call_a_seat(self) -> None:
        """Somebody must deal with the call that was just put in the line."""
        for seat in self._seats:
            if seat.idle:
                seat.idle = False
                seat.wake()
                return
        if len(self._seats) >= self._seats_at_most:
            return
        try:
            self._add_seat(Dispatcher(self, self._width, f"sublet-pool-{len(self._seats)}"))
        except OSError:
            # No descriptor is left: those that are there have to do.
            if not self._seats:
                self._waiting.pop()
                raise

    def _add_seat(self, seat: Dispatcher) -> None:
        self._seats.append(seat)
        self._threads.append(seat.thread)
        seat.thread.start()

    def _see_off(self, workers: list[WorkerHandle]) -> None:
        """Let idle workers go, and watch until they are gone."""
        seat = Dispatcher(self, 0, "sublet-pool-end")
        for worker in workers:
            worker.dismiss()
            seat.adopt(worker)
        self._add_seat(seat)

    def _drop_waiting(self) -> list[Call]:
        dropped = list(self._waiting)
        self._waiting.clear()
        return dropped

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise BadRequest(
                f"This pool belongs to process {self._pid}, which forked this one.",
                "Make a pool in this process.",
            )
        if self._closed:
            # Executors raise this; a program that knows others expects it.
            raise RuntimeError("cannot schedule new futures after shutdown")


def _cancel(calls: list[Call]) -> None:
    """Not under the pool's lock: a callback of a future may use the pool."""
    for call in calls:
        call.future.cancel()
        call.begin()


def _in_order(
    futures: list[Future[Any]], deadline: float | None, bar: Bar, chunked: bool
) -> Iterator[Any]:
    """The results; who stops listening cancels what has not begun."""
    futures.reverse()
    try:
        with bar:
            while futures:
                left = None if deadline is None else deadline - time.monotonic()
                result = futures.pop().result(left)
                if chunked:
                    yield from result
                else:
                    yield result
    finally:
        for future in futures:
            future.cancel()


def _memory(asked: str | int) -> str:
    text = f"{asked}B" if isinstance(asked, int) else asked
    read_memory(text)
    return text


def _device(gpu: int | str | None, device: str | None) -> str | None:
    if gpu is None:
        return device
    if device is not None:
        raise BadRequest("gpu= and device= cannot both be given.", "Leave one out.")
    if gpu == "any":
        return "gpu"
    if isinstance(gpu, bool) or not re.fullmatch(r"\d+(\.\d+)?|[A-Za-z][\w.-]*", str(gpu)):
        raise BadRequest(
            f"gpu={gpu!r} names no GPU.", 'Write an index, a UUID, or "any"; `status` shows them.'
        )
    return f"gpu{gpu}" if str(gpu)[0].isdigit() else str(gpu)


def _packed(initializer: Callable[..., object], arguments: tuple[Any, ...]) -> bytes:
    return pickle_transport.in_one_piece((initializer, tuple(arguments)))


def _refuse_broken_fork() -> None:
    """TensorFlow in a process that was forked after its runtime had started hangs for ever."""
    context = sys.modules.get("tensorflow.python.eager.context")
    current = getattr(context, "_context", None)
    if not getattr(current, "_initialized", False):
        return
    # A runtime has threads of its own; a fork takes none of them along.
    if len(os.listdir("/proc/self/task")) <= threading.active_count():
        raise BadRequest(
            "This process was forked from one in which TensorFlow ran, and it would hang here.",
            "Make the pool in the parent, or start this process with `spawn`.",
        )
