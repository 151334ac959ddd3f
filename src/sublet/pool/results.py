"""The results of `multiprocessing.Pool`, made of the futures of calls."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from multiprocessing import TimeoutError
from typing import Any, Generic, TypeVar

from sublet.errors import CallFailed

T = TypeVar("T")


class AsyncResult(Generic[T]):
    """The result of several calls that count as one; `gather` makes one value of theirs.

    It is ready when all calls have ended and the callback has returned. Of several errors, it
    raises the first in the order of the calls.
    """

    def __init__(
        self,
        futures: list[Future[Any]],
        gather: Callable[[list[Any]], T],
        callback: Callable[[T], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> None:
        self._gather = gather
        self._callback = callback
        self._error_callback = error_callback
        self._futures = futures
        self._left = len(futures)
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._value: T
        self._error: BaseException | None = None
        if not futures:
            self._value = gather([])
            self._ready.set()
        for future in list(futures):
            future.add_done_callback(self._count)

    def get(self, timeout: float | None = None) -> T:
        """The value; raises the error, or TimeoutError if it is not ready in time."""
        if not self._ready.wait(timeout):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._value

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it is ready, or for `timeout` seconds."""
        self._ready.wait(timeout)

    def ready(self) -> bool:
        """Whether all calls have ended."""
        return self._ready.is_set()

    def successful(self) -> bool:
        """Whether no call has failed; ValueError while that is not known."""
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self._error is None

    def _count(self, _: Future[Any]) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        try:
            self._settle()
        finally:
            # Also if a callback fails: nobody may wait for ever.
            self._futures.clear()
            self._ready.set()

    def _settle(self) -> None:
        try:
            self._value = self._gather([outcome(future) for future in self._futures])
        except BaseException as error:
            self._error = error
            if self._error_callback is not None:
                self._error_callback(error)
            return
        if self._callback is not None:
            self._callback(self._value)


class ResultIterator(Generic[T]):
    """Results one by one, in order or as they come. One thread adds, others take."""

    def __init__(self, ordered: bool) -> None:
        self._ordered = ordered
        self._futures: deque[Future[T]] = deque()
        self._changed = threading.Condition()
        self._added = 0
        self._taken = 0
        self._complete = False

    def __iter__(self) -> "ResultIterator[T]":
        return self

    def __next__(self) -> T:
        return self.next()

    def next(self, timeout: float | None = None) -> T:
        """The next result; raises TimeoutError if there is none in time."""
        with self._changed:
            if not self._changed.wait_for(self._decided, timeout):
                raise TimeoutError
            if not self._futures:
                raise StopIteration
            self._taken += 1
            future = self._futures.popleft()
        return outcome(future)

    def add(self, future: Future[T]) -> None:
        """Add the future of one more call."""
        with self._changed:
            self._added += 1
            if self._ordered:
                self._futures.append(future)
        future.add_done_callback(self._note)

    def end(self) -> None:
        """Note that no more will be added."""
        with self._changed:
            self._complete = True
            self._changed.notify_all()

    def _note(self, future: Future[T]) -> None:
        with self._changed:
            if not self._ordered:
                self._futures.append(future)
            self._changed.notify_all()

    def _decided(self) -> bool:
        """Whether it is known what the next result is, or that there is none."""
        if self._futures:
            return self._futures[0].done()
        return self._complete and self._taken == self._added


def outcome(future: Future[T]) -> T:
    """The result of a call that has ended."""
    try:
        return future.result()
    except CancelledError:
        raise terminated() from None


def terminated() -> CallFailed:
    """The error of a call that never began."""
    return CallFailed("The pool was terminated before the call began.", "Make a new pool.")
