"""The parent of a keeper: sees how the worker ends if its keeper is killed.

Whatever a killed keeper leaves falls to it, so the whole tree can still be found below it. It
writes down how the worker has ended (see `attempt_files`), whoever else is gone by then. For its
keeper it starts a broker, which must not be below either of them. It does nothing else, and
ends with the last process that it has.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
from typing import Any

from ..formats import attempt_files, packets
from . import daemonize, subreaper

NAME = "sublet-witness"
_PR_SET_NAME = 15
_DEAF_TO = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTSTP)


def stand_behind() -> socket.socket:
    """Fork: returns in the child, which is to be the keeper, its line to its parent, the witness.

    The keeper says whom it keeps: a worker (`keeps`) and its attempt's `directory`.
    """
    ours, theirs = packets.pair()
    keeper = os.fork()
    if keeper:
        try:
            _Witness(keeper, ours).watch()
        finally:
            os._exit(0)
    ours.close()
    return theirs


def start_apart(
    line: socket.socket, words: list[str], environ: dict[str, str], log: str, report: int
) -> bool:
    """Have our witness start a program beside itself, as `daemonize` does; False if it is gone."""
    wanted = os.memfd_create("sublet")  # There is no bound on environments.
    try:
        with open(wanted, "w", encoding="utf-8", closefd=False) as file:
            json.dump({"words": words, "environ": environ, "log": log}, file)
        return packets.send(line, {}, [wanted, report])
    finally:
        os.close(wanted)


class _Witness:
    def __init__(self, keeper: int, line: socket.socket) -> None:
        signal.set_wakeup_fd(-1)
        subreaper.adopt_orphans()
        ctypes.CDLL(None).prctl(_PR_SET_NAME, NAME.encode(), 0, 0, 0)
        for deaf in _DEAF_TO:
            signal.signal(deaf, signal.SIG_IGN)
        # Nobody's link may stay open because of us.
        os.dup2(line.detach(), 3)
        os.closerange(4, max(int(name) for name in os.listdir("/proc/self/fd")) + 1)
        self._line = socket.socket(fileno=3)
        self._line.setblocking(False)
        self._wake = subreaper.wake_on(signal.SIGCHLD).reading
        self._keeper = keeper
        self._keeps: dict[str, Any] = {}
        self._ended: dict[int, int] = {}

    def watch(self) -> None:
        """Until there is nobody left to wait for, or the keeper has seen to all of it."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._line, select.POLLIN)
        while True:
            for number, _ in poll.poll():
                if number == self._line.fileno() and not self._hear():
                    poll.unregister(self._line)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
            left = self._collect()
            self._note()
            if not left:
                return

    def _collect(self) -> bool:
        """Take in who has ended; False if there is nobody left, or nothing to do for us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if (pid, status) == (self._keeper, 0):
                return False
            if pid == 0:
                return True
            self._ended[pid] = status

    def _hear(self) -> bool:
        """What the keeper says; False once it is gone."""
        heard = packets.receive(self._line)
        if heard is None:
            return False
        packet, descriptors = heard
        if "keeps" in packet:
            self._keeps = packet
        if descriptors:
            wanted, report = descriptors
            with contextlib.suppress(OSError, ValueError):
                daemonize.start(**json.loads(os.pread(wanted, 1 << 24, 0)), report=report)
        packets.close(descriptors)
        return True

    def _note(self) -> None:
        """Write down how the worker has ended, if it is ours to say."""
        worker = self._keeps.get("keeps")
        if self._keeper in self._ended and worker in self._ended:
            status = self._ended.pop(worker)
            attempt_files.write_reaped(self._keeps["directory"], worker, status)
