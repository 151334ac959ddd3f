"""`@sublet.task`: a function whose calls run in leased workers."""

import atexit
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from operator import attrgetter
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, Unpack, overload

from sublet.errors import BadRequest
from sublet.pool.pool import Pool, PoolOptions
from sublet.pool.worker import in_a_worker

P = ParamSpec("P")
T = TypeVar("T")


@overload
def task(function: Callable[P, T], /) -> "Task[P, T]": ...
@overload
def task(
    *, max_workers: int | None = None, **options: Unpack[PoolOptions]
) -> "Callable[[Callable[P, T]], Task[P, T]]": ...


def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Have each call of a function done in a leased worker.

        @sublet.task(memory="1GiB", gpu=0)
        def train(rate): ...

        loss = train(0.1)                        # in a worker; returns when it is done
        future = train.submit(0.1)               # a concurrent.futures.Future
        losses = list(train.map([0.1, 0.01]))    # as many at a time as fit
        loss = await train.call_async(0.1)
        loss = train.local(0.1)                  # right here

    The options are those of `sublet.Pool`. All calls of a task share one pool, which is made at
    the first call and closed when the interpreter ends. Inside a worker of any pool a task calls
    its function directly, as workers that wait for workers might wait for ever.
    """
    inspect.signature(Pool).bind(**options)  # Refuse a wrong name here, not at the first call.
    if function is None:
        return functools.partial(Task, options=options)
    return Task(function, options)


class Task(Generic[P, T]):
    """A function and the pool for its calls. Can be pickled, as functions can."""

    __name__: str
    __qualname__: str

    def __init__(self, function: Callable[P, T], options: dict[str, Any]) -> None:
        if isinstance(function, (staticmethod, classmethod)) or not callable(function):
            raise BadRequest(
                f"{function!r} cannot be a task.", "Put @sublet.task directly above a function."
            )
        self._function = function
        self._options = options
        self._pools: dict[int, Pool] = {}
        """At most one for each process: a pool cannot be used in a fork."""
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it in a worker, and return what it returns."""
        if in_a_worker():
            return self._function(*args, **kwargs)
        return self.submit(*args, **kwargs).result()

    def local(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it right here, without a lease."""
        return self._function(*args, **kwargs)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Call it in a worker, without waiting."""
        if in_a_worker():
            return _at_once(self._function, *args, **kwargs)
        return self._pool().submit(functools.partial(self, **kwargs) if kwargs else self, *args)

    def map(
        self,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        progress: bool = True,
    ) -> Iterator[T]:
        """Call it for each of the arguments, as `Pool.map` does."""
        if in_a_worker():
            return map(self._function, *iterables)
        return self._pool().map(
            self, *iterables, timeout=timeout, chunksize=chunksize, progress=progress
        )

    async def call_async(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it in a worker from an event loop."""
        import asyncio

        return await asyncio.wrap_future(self.submit(*args, **kwargs))

    def close(self) -> None:
        """Wait for all calls and let the workers go; the next call makes a new pool."""
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            atexit.unregister(self._leave)
            pool.shutdown()

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self._options.items())
        return f"<sublet.task {self.__qualname__}{options}>"

    def __set_name__(self, owner: type, name: str) -> NoReturn:
        raise BadRequest(
            f"{owner.__name__}.{name} is a method, and a task has no self.",
            "Put @staticmethod above @sublet.task, or use a function outside of the class.",
        )

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # The module's name for the function stands for the task, so pickling the function by that
        # name would find the task; and a main program cannot be imported by its worker at all.
        module, name = self.__module__, self.__qualname__
        if module != "__main__" and _found(module, name) is self:
            return _import, (module, name)
        return Task, (self._function, self._options)

    def _pool(self) -> Pool:
        pool = self._pools.get(os.getpid())
        if pool is None:
            # Two threads may make one each, and agree on the first: a new pool holds nothing.
            pool = self._pools.setdefault(os.getpid(), Pool(**self._options))
            atexit.register(self._leave)
        return pool

    def _leave(self) -> None:
        """At the interpreter's end, when calls are done, end idle workers of this process."""
        pool = self._pools.get(os.getpid())
        if pool is not None:
            pool.terminate_workers()


def _at_once(function: Callable[..., T], *args: Any, **kwargs: Any) -> "Future[T]":
    """Call the function now; the future has its result or error."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    try:
        future.set_result(function(*args, **kwargs))
    except Exception as error:
        future.set_exception(error)
    return future


def _found(module: str, name: str) -> object:
    try:
        return attrgetter(name)(sys.modules[module])
    except (AttributeError, KeyError):
        return None


def _import(module: str, name: str) -> Any:
    return attrgetter(name)(importlib.import_module(module))
