"""`sublet.Pool`: calls functions in leased workers, as a `concurrent.futures.Executor`."""

import asyncio
import itertools
import os
import re
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from sublet import descriptors
from sublet.client.job_request import choice
from sublet.domain.job import OnOom
from sublet.domain.memory_option import read_memory
from sublet.errors import BadRequest
from sublet.formats import pickle_transport
from sublet.pool.call import Call, Chunk, chunks, name_of
from sublet.pool.progress import Bar
from sublet.pool.scheduler import Scheduler
from sublet.pool.worker import Terms, WorkerHandle

if TYPE_CHECKING:
    from sublet.pool.cluster import ClusterWorkers

T = TypeVar("T")
Isolation = Literal["process", "thread", "session"]
_ISOLATIONS = ("process", "thread", "session")


class WorkerOptions(TypedDict, total=False):
    """The options of `Pool` about its workers, for functions that pass them on."""

    memory: str | int
    isolation: Isolation
    reuse: bool | int
    on_oom: OnOom
    gpu: int | str | None
    device: str | None
    cpus: int | None
    name: str | None
    cold: bool
    on: str


class PoolOptions(WorkerOptions, total=False):
    """All options of `Pool` but `max_workers`."""

    initializer: Callable[..., object] | None
    initargs: tuple[Any, ...]
    mp_context: object
    max_tasks_per_child: int | None


class Pool(Executor):
    """Calls functions in leased workers, as many at a time as fit.

    Each call has a worker of its own, forked warm, unless `reuse` is set: then a worker takes
    call after call (a number says how many), and is replaced when it has gained much memory.
    With `isolation="thread"` or `"session"` there is one worker with one lease, and calls run in
    its threads; a session pool gives each call a TF1 graph and session of its own.

    `gpu` is an index, a UUID or "any"; workers that may go to several GPUs are spread over them. In
    a program that runs under a lease, the workers' leases come out of that one.

    With `on="ray"`, workers are on the nodes of a Ray cluster: Ray chooses the node, the broker
    there leases. It is the cluster of RAY_ADDRESS, or the one that runs here; `on="ray://HOST:PORT"`
    names another.

    Replaces a `ProcessPoolExecutor`, with the same arguments: `max_tasks_per_child` is another name
    for `reuse`; `mp_context` has no effect, as Sublet starts workers in its own way, as clean as
    spawned ones.

    May be used from any thread. All submitted calls are done before the `with` block ends; on
    Ctrl-C running calls are ended.
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
        on_oom: OnOom = "fail",
        gpu: int | str | None = None,
        device: str | None = None,
        cpus: int | None = None,
        name: str | None = None,
        cold: bool = False,
        on: str = "local",
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
        threads = isolation != "process"
        cluster = None if on == "local" else _cluster(on)
        workers = max_workers or _processors(cluster, threads)
        terms = Terms(
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
        self._numbers = itertools.count(1)
        self._scheduler = Scheduler(
            terms,
            most=1 if threads else workers,
            width=workers if threads else 1,
            start=cluster or WorkerHandle,
        )

    def submit(  # type: ignore[override]  # It takes `memory` besides.
        self, fn: Callable[..., T], /, *args: Any, memory: str | int | None = None, **kwargs: Any
    ) -> "Future[T]":
        """Call `fn(*args, **kwargs)` in a worker. `memory` is for this call alone; use
        `functools.partial` for a function that has a parameter of that name."""
        if not callable(fn):
            raise BadRequest(f"{fn!r} cannot be called.", "Submit a function.")
        isolation = self._scheduler.terms.isolation
        if memory is not None and isolation != "process":
            raise BadRequest(
                f"All calls of a {isolation} pool share one lease.",
                "Give the pool more memory, or use isolation='process'.",
            )
        asked = None if memory is None else _memory(memory)
        call = Call(next(self._numbers), fn, args, kwargs, asked)
        self._scheduler.put(call)
        return call.future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        progress: bool = True,
    ) -> Iterator[T]:
        """Results in the order of the arguments. A worker gets `chunksize` calls at once. A bar
        shows the progress on a terminal or in a notebook, unless `progress` is false."""
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
        """`submit` for event loops: returns the result. Cancelling it cancels a waiting call."""
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
        return self._scheduler.reason()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. With `wait`, return when all have ended and no worker is left."""
        threads = self._scheduler.shutdown(cancel_futures)
        if wait:
            for thread in threads:
                if thread is not threading.current_thread():
                    thread.join()

    def terminate_workers(self) -> None:
        """Take no more calls, cancel those that wait, and end the workers: running calls fail."""
        self._scheduler.terminate()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> Literal[False]:
        if kind is not None and not issubclass(kind, Exception):
            # Ctrl-C reaches us only, as workers are in sessions of their own.
            self.terminate_workers()
        self.shutdown(wait=True)
        return False

    async def __aenter__(self) -> "Pool":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> Literal[False]:
        return await asyncio.to_thread(self.__exit__, kind)

    def __repr__(self) -> str:
        terms = self._scheduler.terms
        state = "closed" if self._scheduler.closed else f"{len(self._scheduler)} calls wait"
        return f"<sublet.Pool {terms.isolation}, memory={terms.memory}, {state}>"


def _cluster(on: str) -> "ClusterWorkers":
    if on != "ray" and not on.startswith("ray://"):
        raise BadRequest(f"on={on!r} is no place.", "Write local, ray or ray://HOST:PORT.")
    from sublet.pool.cluster import workers_on

    return workers_on(on)


def _processors(cluster: "ClusterWorkers | None", on_one_node: bool) -> int:
    if cluster is None:
        return len(os.sched_getaffinity(0))
    return cluster.processors(on_one_node)


def _in_order(
    futures: list[Future[Any]], deadline: float | None, bar: Bar, chunked: bool
) -> Iterator[Any]:
    """The results; closing the iterator cancels calls that have not begun."""
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
    """Refuse a process that was forked with TensorFlow's runtime, which would hang for ever."""
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
