"""What a pool on a Ray cluster has on a node: an actor that drives leased workers there.

Ray holds the actor's resources, so they are the pool's. The actor has one worker at a time, from
the node's own broker, as a pool of this machine would; it passes calls on to the worker, and what
the worker and the broker say back. It reads neither.
"""

import os
import pickle
import select
import sys
import threading
from collections.abc import Callable
from typing import Any

from sublet import __version__
from sublet.errors import CallFailed, SubletError, WorldError
from sublet.formats import pickle_transport
from sublet.pool.worker import Terms, WorkerHandle

Event = tuple[Any, ...]
"""A word, and what belongs to it."""


class Slot:
    """The actor. Workers are numbered: what is told of one is not taken for another's.

    Ray may run what it is asked in another order, so commands are numbered, too.
    """

    def __init__(self, version: str) -> None:
        if version != __version__:
            raise WorldError(f"Sublet {__version__} is installed there, and {version} here.")
        self._has_directory = _has_directory()
        self._path = list(sys.path)
        self._lock = threading.Condition()
        self._commands: dict[int, tuple[str, tuple[Any, ...]]] = {}
        self._next = 0
        self._events: dict[int, list[Event]] = {}
        """What is still to be told of each worker that has not been closed."""
        self._latest = 0
        self._worker: WorkerHandle | None = None
        self._unsent: set[int] = set()
        """Calls that the worker did not take any more."""
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        threading.Thread(target=self._run, name="sublet-slot", daemon=True).start()

    def do(self, turn: int, what: str, *args: Any) -> None:
        """Take a command, to be done when all before it are."""
        with self._lock:
            self._commands[turn] = what, args
        os.eventfd_write(self._wake, 1)

    def events(self, number: int) -> list[Event]:
        """What has happened to this worker; waits until something has. Nothing of one that was
        closed."""
        with self._lock:
            self._lock.wait_for(
                lambda: (
                    self._events.get(number)
                    or (number <= self._latest and number not in self._events)
                )
            )
            events = self._events.get(number, [])
            if events:
                self._events[number] = []
            return events

    def _run(self) -> None:
        while True:
            self._step()

    def _step(self) -> None:
        """Wait for a command, the broker or the worker, and see to it."""
        worker = self._worker
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if worker is not None:
            poll.register(worker.fileno(), select.POLLIN)
            poll.register(worker.channel.fileno(), select.POLLIN)
            broker = worker.fileno()
        heard = {descriptor for descriptor, _ in poll.poll()}
        if self._wake in heard:
            os.eventfd_read(self._wake)
            self._obey()
        if worker is None or worker is not self._worker:
            return
        try:
            if broker in heard:
                self._follow(worker)
            elif worker.channel.fileno() in heard:
                self._read(worker)
        except SubletError as error:
            self._tell("refused", error)
            self._drop()
        except pickle_transport.NoPacket:
            number = pickle_transport.CHANNEL
            what = f"The worker of this call wrote to descriptor {number}, which is Sublet's."
            hint = "Have the function open descriptors of its own."
            self._tell("refused", CallFailed(what, hint))
            self._drop()

    def _obey(self) -> None:
        while True:
            with self._lock:
                command = self._commands.pop(self._next, None)
            if command is None:
                return
            self._next += 1
            what, args = command
            do: Callable[..., None] = getattr(self, f"_{what}")
            try:
                do(*args)
            except Exception as error:
                self._tell("refused", error)

    def _open(self, number: int, terms: Terms, label: str, directory: str, path: list[str]) -> None:
        # Where nodes have the files of the program, as at home; else where Ray has put them.
        if not self._has_directory and os.path.isdir(directory):
            os.chdir(directory)
        sys.path[:] = self._path + [entry for entry in path if entry not in self._path]
        with self._lock:
            self._latest = number
            self._events[number] = []
        self._unsent.clear()
        self._worker = _Worker(terms, label, self._tell)

    def _send(self, call: int, body: Any, buffers: list[Any]) -> None:
        if self._worker is None:
            return
        packed = pickle_transport.PickledObject(bytes(body), buffers)
        try:
            self._worker.send(call, packed)
        except OSError:
            self._unsent.add(call)

    def _dismiss(self) -> None:
        if self._worker is not None:
            self._worker.dismiss()

    def _close(self) -> None:
        self._drop()
        with self._lock:
            self._events.clear()
            self._lock.notify_all()

    def _drop(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _follow(self, worker: WorkerHandle) -> None:
        ended = worker.hear()
        # Answers first: a worker may have sent its last one and ended.
        self._read(worker)
        if ended is not None:
            self._tell("ended", ended, worker.unread() | self._unsent)
            self._drop()

    def _read(self, worker: WorkerHandle) -> None:
        while (packet := worker.receive_nowait()) is not None:
            if packet.kind & pickle_transport.LAST:
                worker.retire()
            beside = [pickle.PickleBuffer(one) for one in packet.buffers]
            body = packet.body
            whole = body if isinstance(body, bytes) else pickle.PickleBuffer(body)
            self._tell("packet", packet.kind, packet.call, whole, beside)

    def _tell(self, *event: Any) -> None:
        with self._lock:
            if self._latest in self._events:  # It may have been closed.
                self._events[self._latest].append(event)
                self._lock.notify_all()


class _Worker(WorkerHandle):
    """A worker that tells the pool what its broker says of it."""

    def __init__(self, terms: Terms, label: str, tell: Callable[..., None]) -> None:
        self._tell = tell
        super().__init__(terms, label, lambda reason: tell("waits", reason))

    def granted(self, message: Any) -> None:
        super().granted(message)
        self._tell("granted")

    def retried(self, message: Any) -> None:
        super().retried(message)
        self._tell("retried")


def _has_directory() -> bool:
    """Whether Ray was told to bring a directory along."""
    import ray

    return bool(ray.get_runtime_context().runtime_env.get("working_dir"))
