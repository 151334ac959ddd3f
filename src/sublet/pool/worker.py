"""The client's side of one worker process: its job at the broker, and the channel to it."""

import contextlib
import errno
import os
import pickle
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from sublet import descriptors
from sublet.client import job_request
from sublet.client.job_follower import JobFollower
from sublet.domain.job import POOL_PROGRAM
from sublet.errors import WorldError
from sublet.formats import pickle_transport
from sublet.formats.lease import say
from sublet.home import Home
from sublet.inside import pool_worker

if TYPE_CHECKING:
    from sublet.wire.messages import Ended, Granted, Retried, Started
    from sublet.wire.pack import Tree


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


class WorkerHandle:
    """One worker, from its job's first word to its last. Used by one thread at a time.

    `told` hears why it waits, and an empty line when it does not any more.
    """

    def __init__(self, terms: Terms, label: str, told: Callable[[str], None]) -> None:
        self.ready = False
        """Whether it has its lease, and may be given calls."""
        self.leaving = False
        """Whether it takes no more calls, and is only watched until it has ended."""
        self.reusable = terms.calls != 1
        self._has_threads = terms.isolation != "process"
        self.served = 0
        """Calls that it has answered."""
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
        self._told = told
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
        # Calls are alike, so what balances their number balances the devices.
        spec["spread"] = True
        try:
            self._open(spec)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            raise WorldError(
                f"This process may open no more than {descriptors.limit()} files, and another "
                "worker needs some.",
                "Use fewer workers at a time, or raise the limit (`ulimit -n`).",
            ) from error

    def _open(self, spec: "Tree") -> None:
        self.channel, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._null = -1
        try:
            self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            streams = [self._null, 1, 2, self._theirs.fileno()]
            self._job = JobFollower(spec, Home.find(), self, streams)
        except BaseException:
            self._close_streams()
            raise

    def fileno(self) -> int:
        """The connection to the broker."""
        return self._job.fileno()

    @property
    def job(self) -> int | None:
        """Its number at the broker, once that is known."""
        return self._job.job

    def send(self, number: int, parcel: pickle_transport.PickledObject) -> None:
        """Give it a call; it must be ready."""
        if not self._opened:
            pickle_transport.send(
                self.channel,
                pool_worker.OPENING,
                0,
                pickle_transport.PickledObject(self._opening, []),
            )
            self._opened = True
        pickle_transport.send(self.channel, pool_worker.CALL, number, parcel)

    def receive_nowait(self) -> pickle_transport.PicklePacket | None:
        """The next answer; None if there is none now."""
        try:
            return pickle_transport.receive(self.channel, wait=False)
        except BlockingIOError:
            return None

    def hear(self) -> "Ended | None":
        """What the broker says; how the worker ended, once it has. Raises what was refused."""
        return self._job.hear()

    def unread(self) -> set[int]:
        """Of a worker that has ended: the calls that it had not taken.

        We hold its end of the channel too, so what it has not read can still be seen.
        """
        found = set()
        with contextlib.suppress(OSError):
            while (packet := pickle_transport.receive(self._theirs, wait=False)) is not None:
                found.add(packet.call)
        return found

    def retire(self) -> None:
        """It has said that it takes no more calls. One with threads has others to finish first."""
        if self._has_threads:
            self.dismiss()
        self.leaving = True

    def dismiss(self) -> None:
        """No more calls: it ends when it has answered those that it has."""
        self.leaving = True
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Hang up; a worker that still lives is ended by its keeper."""
        self._job.close()
        self._close_streams()

    def waits(self, reason: str) -> None:
        """From the broker: there is no room yet."""
        self.ready = False
        self._told(reason)

    def granted(self, message: "Granted") -> None:
        """From the broker: it has a lease."""
        self.ready = True
        self._told("")

    def started(self, message: "Started") -> None:
        """From the broker: it runs. A cold start costs seconds, so that is said, once."""
        if message.how != "warm":
            say(f"workers of this pool start {message.how}")

    def retried(self, message: "Retried") -> None:
        """From the broker: it ran out of memory, and another attempt with more follows."""
        self.ready = self._opened = False
        self.attempts += 1

    def _close_streams(self) -> None:
        self.channel.close()
        self._theirs.close()
        if self._null >= 0:
            os.close(self._null)
            self._null = -1


def _authkey() -> bytes | None:
    """What a worker needs to use what a `multiprocessing.Manager` of this process holds."""
    process = sys.modules.get("multiprocessing.process")
    return None if process is None else bytes(process.current_process().authkey)
