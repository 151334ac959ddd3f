"""`multiprocessing` with a `Pool` whose workers are leased.

    import sublet.multiprocessing as mp        # before: import multiprocessing as mp

    with mp.Pool(3, memory="1GiB") as pool:
        losses = pool.map(train, configs)

Everything else is the standard library's own. Where its pool waits for ever, for a worker that died
or after `terminate`, this one raises an error.
"""

import functools
import itertools
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from multiprocessing import TimeoutError
from typing import Any, Literal, NoReturn, TypeVar, Unpack

from sublet.pool.call import Chunk, Row, chunks, name_of
from sublet.pool.pool import Pool as _Executor
from sublet.pool.pool import WorkerOptions
from sublet.pool.progress import Bar
from sublet.pool.results import AsyncResult, ResultIterator, terminated

__all__ = ["AsyncResult", "Pool", "TimeoutError"]

T = TypeVar("T")
ErrorCallback = Callable[[BaseException], object]

_AHEAD = 4
"""Calls for each worker that `imap` queues ahead, so that it can read an endless iterable."""


class Pool:
    """As `multiprocessing.Pool`, with the options of `sublet.Pool`, such as memory and gpu.

    A worker takes call after call, or `maxtasksperchild` of them. `context` has no effect: Sublet
    starts workers in its own way, as clean as spawned ones.
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: object = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        if processes is not None and processes < 1:
            raise ValueError("Number of processes must be at least 1")
        if maxtasksperchild is not None and not _is_positive(maxtasksperchild):
            raise ValueError("maxtasksperchild must be a positive int or None")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        options.setdefault("reuse", maxtasksperchild or True)
        self._processes = processes or len(os.sched_getaffinity(0))
        self._spread = options["reuse"] is True
        self._executor = _Executor(
            self._processes,
            initializer=initializer,
            initargs=tuple(initargs),
            **options,
        )
        self._lock = threading.Lock()
        self._feeds: set[threading.Thread] = set()
        self._state: Literal["running", "closed", "terminated"] = "running"

    def apply(
        self,
        func: Callable[..., T],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
    ) -> T:
        """`func(*args, **kwds)` in a worker."""
        return self.apply_async(func, args, kwds).get()

    def apply_async(
        self,
        func: Callable[..., T],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callable[[T], object] | None = None,
        error_callback: ErrorCallback | None = None,
    ) -> AsyncResult[T]:
        """`apply` without waiting."""
        self._check_running()
        # `submit` would take an argument named `memory` for itself.
        function = functools.partial(func, **kwds) if kwds else func
        future = self._executor.submit(function, *args)
        return AsyncResult([future], _only, callback, error_callback)

    def map(
        self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int | None = None
    ) -> list[T]:
        """The results in the order of the arguments; an error is raised when all have ended."""
        return self._map(func, _singly(iterable), chunksize)

    def map_async(
        self,
        func: Callable[[Any], T],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callable[[list[T]], object] | None = None,
        error_callback: ErrorCallback | None = None,
    ) -> AsyncResult[list[T]]:
        """`map` without waiting."""
        return self._start(func, _singly(iterable), chunksize, callback, error_callback)

    def starmap(
        self,
        func: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
    ) -> list[T]:
        """`map` for a function of several arguments."""
        return self._map(func, map(tuple, iterable), chunksize)

    def starmap_async(
        self,
        func: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callable[[list[T]], object] | None = None,
        error_callback: ErrorCallback | None = None,
    ) -> AsyncResult[list[T]]:
        """`starmap` without waiting."""
        return self._start(func, map(tuple, iterable), chunksize, callback, error_callback)

    def imap(
        self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int = 1
    ) -> Iterator[T]:
        """Results in order, each as soon as it is known; the iterable is read meanwhile."""
        return self._feed(func, iterable, chunksize, ordered=True)

    def imap_unordered(
        self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int = 1
    ) -> Iterator[T]:
        """`imap` in the order in which calls end."""
        return self._feed(func, iterable, chunksize, ordered=False)

    def close(self) -> None:
        """Take no more calls; those that were given are done."""
        with self._lock:
            if self._state == "running":
                self._state = "closed"
            feeding = bool(self._feeds)
        if not feeding:
            self._executor.shutdown(wait=False)

    def terminate(self) -> None:
        """End the workers now. Calls that have no result yet fail."""
        self._state = "terminated"
        self._executor.terminate_workers()
        self._executor.shutdown(wait=True)

    def join(self) -> None:
        """After `close` or `terminate`: wait until no worker is left."""
        if self._state == "running":
            raise ValueError("Pool is still running")
        while self._state == "closed" and self._feeds:
            for thread in list(self._feeds):
                thread.join()
        self._executor.shutdown(wait=True)

    def __enter__(self) -> "Pool":
        self._check_running()
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()

    def __reduce__(self) -> NoReturn:
        raise NotImplementedError("pool objects cannot be passed between processes or pickled")

    def __repr__(self) -> str:
        return f"<sublet.multiprocessing.Pool {self._state}, {self._processes} processes>"

    def _map(self, function: Callable[..., T], rows: Iterable[Row], size: int | None) -> list[T]:
        bar = Bar(name_of(function), self._executor.reason)
        result = self._start(function, rows, size, None, None, bar)
        with bar:
            return result.get()

    def _start(
        self,
        function: Callable[..., T],
        rows: Iterable[Row],
        size: int | None,
        callback: Callable[[list[T]], object] | None,
        error_callback: ErrorCallback | None,
        bar: Bar | None = None,
    ) -> AsyncResult[list[T]]:
        self._check_running()
        todo = list(rows)
        size = self._chunksize(len(todo)) if size is None else _checked(size)
        futures = []
        for chunk in chunks(todo, size):
            future = self._executor.submit(Chunk(function), chunk)
            futures.append(future if bar is None else bar.follow(future, len(chunk)))
        return AsyncResult(futures, _flat, callback, error_callback)

    def _chunksize(self, count: int) -> int:
        """As in the standard library, or 1 where each call gets a new worker."""
        return max(1, -(-count // (self._processes * 4))) if self._spread else 1

    def _feed(
        self, function: Callable[..., T], iterable: Iterable[Any], size: int, ordered: bool
    ) -> Iterator[T]:
        """Read the iterable, which may be slow or endless, in a thread."""
        rows: Iterable[Row] = _singly(iterable)
        if _checked(size) > 1:
            rows = ((chunk,) for chunk in chunks(rows, size))
        results: ResultIterator[Any] = ResultIterator(ordered)
        what = function if size == 1 else Chunk(function)
        thread = threading.Thread(
            target=self._read, args=(what, rows, results), name="sublet-imap", daemon=True
        )
        with self._lock:
            self._check_running()
            self._feeds.add(thread)
            thread.start()
        return results if size == 1 else itertools.chain.from_iterable(results)

    def _read(
        self, function: Callable[..., Any], rows: Iterable[Row], results: ResultIterator[Any]
    ) -> None:
        ahead = threading.Semaphore(self._processes * _AHEAD)
        try:
            for row in rows:
                ahead.acquire()
                if not threading.main_thread().is_alive():
                    break  # The program ends: submitted calls are done, no more are read.
                future = self._executor.submit(function, *row)
                results.add(future)
                future.add_done_callback(lambda _: ahead.release())
        except Exception as error:
            # An error of the iterable takes its place among the results.
            last: Future[Any] = Future()
            last.set_exception(terminated() if self._state == "terminated" else error)
            results.add(last)
        finally:
            results.end()
            with self._lock:
                self._feeds.discard(threading.current_thread())
                over = self._state != "running" and not self._feeds
            if over:
                self._executor.shutdown(wait=False)

    def _check_running(self) -> None:
        if self._state != "running":
            raise ValueError("Pool not running")


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(multiprocessing, name)


def _singly(iterable: Iterable[Any]) -> Iterator[Row]:
    return ((item,) for item in iterable)


def _only(values: list[T]) -> T:
    return values[0]


def _flat(values: list[list[T]]) -> list[T]:
    return list(itertools.chain.from_iterable(values))


def _checked(chunksize: int) -> int:
    if chunksize < 1:
        raise ValueError(f"Chunksize must be 1+, not {chunksize!r}")
    return chunksize


def _is_positive(number: object) -> bool:
    return isinstance(number, int) and number > 0
