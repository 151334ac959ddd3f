"""The parent of a keeper: records how the worker ends if its keeper is killed.

The processes of a killed keeper become its children, so the whole tree can still be found below it.
It writes down how the worker has ended (see `attempt_files`). It also starts brokers for its
keeper, because they must be below neither of them. It ends with its last child.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from typing import Any

from ..formats import attempt_files, packets
from . import daemonize, subreaper

NAME = "sublet-witness"


def fork_keeper() -> socket.socket:
    """Fork. Returns only in the child, the keeper: its connection to its parent, the witness.

    The keeper sends the witness the worker that it `keeps`, and the attempt's `directory`.
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


def start_beside(
    witness: socket.socket, words: list[str], environ: dict[str, str], log: str, report: int
) -> bool:
    """Have the witness start a program as its sibling, as `daemonize` does; False if it is gone."""
    wanted = os.memfd_create("sublet")  # There is no bound on environments.
    try:
        with open(wanted, "w", encoding="utf-8", closefd=False) as file:
            json.dump({"words": words, "environ": environ, "log": log}, file)
        return packets.send(witness, {}, [wanted, report])
    finally:
        os.close(wanted)


class _Witness:
    def __init__(self, keeper: int, link: socket.socket) -> None:
        signal.set_wakeup_fd(-1)
        subreaper.become(NAME)
        # No connection of others may stay open because of us.
        os.dup2(link.detach(), 3)
        os.closerange(4, max(int(name) for name in os.listdir("/proc/self/fd")) + 1)
        self._link = socket.socket(fileno=3)
        self._link.setblocking(False)
        self._wake = subreaper.wake_on(signal.SIGCHLD).reading
        self._keeper = keeper
        self._keeps: dict[str, Any] = {}
        self._ended: dict[int, int] = {}

    def watch(self) -> None:
        """Stay until no child is left, or the keeper has ended in order."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._link, select.POLLIN)
        while True:
            for number, _ in poll.poll():
                if number == self._link.fileno() and not self._receive():
                    poll.unregister(self._link)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
            left = self._collect()
            self._note()
            if not left:
                return

    def _collect(self) -> bool:
        """Collect ended children; False if none is left, or the keeper has ended in order."""
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

    def _receive(self) -> bool:
        """Take in what the keeper says; False once it is gone."""
        heard = packets.receive(self._link)
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
        """Write down how the worker has ended, if its keeper could not."""
        worker = self._keeps.get("keeps")
        if self._keeper in self._ended and worker in self._ended:
            status = self._ended.pop(worker)
            attempt_files.write_reaped(self._keeps["directory"], worker, status)
