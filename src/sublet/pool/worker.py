"""The pool's side of one worker process: its job at the broker, and the channel to it."""

import contextlib
import errno
import pickle
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from sublet import descriptors
from sublet.client import job_request
from sublet.client.job_channel import JobChannel
from sublet.domain.job import POOL_PROGRAM
from sublet.errors import WorldError
from sublet.formats import pickle_transport
from sublet.inside.current_lease import say

if TYPE_CHECKING:
    from sublet.wire.messages import Ended, Granted, Retried, Started


class Terms(Struct, frozen=True):
    """What the workers of a pool have in common."""

    memory: str
    name: str | None = None
    isolation: str = "process"
    threads: int = 1
    calls: int = 1
    """How many calls a worker takes; 0 for any number."""
    initializer: bytes | None = None
    device: str | None = None
    cpus: int | None = None
    on_oom: str = "fail"
    cold: bool = False


class PoolWorker(Protocol):
    """One worker, on this machine or another, as dispatchers use it. One thread at a time."""

    ready: bool
    """Whether it has its lease, and may be given calls."""
    leaving: bool
    """Whether it takes no more calls, and is only followed until it has ended."""
    reusable: bool
    served: int
    """The number of calls that it has answered."""
    attempts: int

    def fileno(self) -> int:
        """Becomes readable when its broker has something to say."""

    def answers(self) -> int:
        """Becomes readable when it has answered; may be the same descriptor."""

    def send(self, number: int, call: pickle_transport.PickledObject) -> None:
        """Give it a call; it must be ready."""

    def receive_nowait(self) -> pickle_transport.PicklePacket | None:
        """The next packet from it; None if there is none now."""

    def hear(self) -> "Ended | None":
        """Take in what the broker says; how the worker ended, once it has. Raises a refusal."""

    def unread(self) -> set[int]:
        """The calls that a worker had not read when it ended."""

    def retire(self) -> None:
        """It takes no more calls, as it has said; with threads, it finishes others first."""

    def dismiss(self) -> None:
        """Send no more calls: it ends when it has answered those that it has."""

    def close(self) -> None:
        """Drop it; one that still lives is ended."""


StartWorker = Callable[[Terms, str, Callable[[str], None]], PoolWorker]
"""Starts a worker; the last argument is called with the reason while it waits for its lease, and
then with an empty one."""


class WorkerHandle:
    """One worker, from the request for its lease to its end. Used by one thread at a time.

    `on_wait` is called with the reason while it waits for its lease, and then with an empty one.
    """

    def __init__(self, terms: Terms, label: str, on_wait: Callable[[str], None]) -> None:
        self.ready = False
        """Whether it has its lease, and may be given calls."""
        self.leaving = False
        """Whether it takes no more calls, and is only followed until it has ended."""
        self.reusable = terms.calls != 1
        self._has_threads = terms.isolation != "process"
        self.served = 0
        """The number of calls that it has answered."""
        self.attempts = 1
        self._opening = pickle.dumps(
            {
                "path": sys.path,
                "isolation": terms.isolation,
                "threads": terms.threads,
                "calls": terms.calls,
                "initializer": terms.initializer,
                "authkey": _authkey(),
            }
        )
        self._opened = False
        self._on_wait = on_wait
        words = [sys.executable, "-m", POOL_PROGRAM.decode(), label]
        spec = job_request.job(
            words,
            terms.memory,
            device=terms.device,
            cpus=terms.cpus,
            on_oom=terms.on_oom,
            name=terms.name or label,
            cold=terms.cold,
        )
        # Calls are alike: as many workers on each device balance the load.
        spec["spread"] = True
        try:
            self._job = JobChannel(spec, self)
            self.channel = self._job.channel
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            raise WorldError(
                f"This process may open no more than {descriptors.limit()} files, and another "
                "worker needs some.",
                "Use fewer workers at a time, or raise the limit (`ulimit -n`).",
            ) from error

    def fileno(self) -> int:
        """The connection to the broker."""
        return self._job.fileno()

    def answers(self) -> int:
        """The channel to it."""
        return self.channel.fileno()

    @property
    def job(self) -> int | None:
        """Its number at the broker; None until that is known."""
        return self._job.job

    def send(self, number: int, call: pickle_transport.PickledObject) -> None:
        """Give it a call; it must be ready."""
        if not self._opened:
            opening = pickle_transport.PickledObject(self._opening, [])
            pickle_transport.send(self.channel, pickle_transport.OPENING, 0, opening)
            self._opened = True
        pickle_transport.send(self.channel, pickle_transport.CALL, number, call)

    def receive_nowait(self) -> pickle_transport.PicklePacket | None:
        """The next packet from it; None if there is none now."""
        try:
            return pickle_transport.receive(self.channel, wait=False)
        except BlockingIOError:
            return None

    def hear(self) -> "Ended | None":
        """Take in what the broker says; how the worker ended, once it has. Raises a refusal."""
        return self._job.hear()

    def unread(self) -> set[int]:
        """The calls that a worker had not read when it ended.

        They are still in the socket, because we hold its end of the channel too.
        """
        found = set()
        with contextlib.suppress(OSError):
            while (packet := pickle_transport.receive(self._job.theirs, wait=False)) is not None:
                found.add(packet.call)
        return found

    def retire(self) -> None:
        """It takes no more calls, as it has said; with threads, it finishes others first."""
        if self._has_threads:
            self.dismiss()
        self.leaving = True

    def dismiss(self) -> None:
        """Send no more calls: it ends when it has answered those that it has."""
        self.leaving = True
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Drop the connections; its keeper ends a worker that still lives."""
        self._job.close()

    def waits(self, reason: str) -> None:
        """From the broker: there is no room yet."""
        self.ready = False
        self._on_wait(reason)

    def granted(self, message: "Granted") -> None:
        """From the broker: it has a lease."""
        self.ready = True
        self._on_wait("")

    def started(self, message: "Started") -> None:
        """From the broker: it runs. A cold start, which takes seconds, is reported once."""
        if message.how != "warm":
            say(f"workers of this pool start {message.how}")

    def lacks_memory(self, reason: str) -> None:
        """From the broker: a call that waits for memory fails by itself, if it does."""

    def retried(self, message: "Retried") -> None:
        """From the broker: it ran out of memory, and another attempt with more follows."""
        self.ready = self._opened = False
        self.attempts += 1


def _authkey() -> bytes | None:
    """The key with which a worker can use this process's `multiprocessing.Manager`s."""
    process = sys.modules.get("multiprocessing.process")
    return None if process is None else bytes(process.current_process().authkey)


def in_a_worker() -> bool:
    """Whether this process is a pool's worker, or was forked from one.

    Code that could start a pool of its own there calls the function directly instead: a worker that
    waits for another holds its lease meanwhile, so enough of them would wait for ever.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(spec, "name", None) == POOL_PROGRAM.decode()
