"""The relay: what stands here for a program that runs on a node.

It has the program's streams, passes signals on, and writes down how the program ended. It asks the
bridge, and the next bridge if that one ends; the same program is never started twice by that.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from sublet.backends.ray import orders
from sublet.backends.ray.cluster import Cluster
from sublet.domain.job import Outcome
from sublet.errors import SubletError
from sublet.home import Home
from sublet.keeper import subreaper
from sublet.nodes import packages
from sublet.nodes.limits import LOST_AFTER
from sublet.units import format_bytes
from sublet.wire.frames import LARGEST_REPLY, Frames

_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGCONT,
)
_LOOKS = 1.0
_LARGE = 10 << 20


class Relay:
    """One attempt. `run` returns when its end is written down."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._order = orders.read_order(directory)
        self._cluster = Cluster(Home.find(), self._order.cluster)
        self._frames: Frames | None = None
        self._written = {1: 0, 2: 0}
        """How many bytes of each stream have come and were written."""
        self._broken = self._begun = False
        self._silent_since = time.monotonic()
        self._package = packages.describe(self._order.spec)

    def run(self) -> None:
        """See the program through to its end."""
        wake = subreaper.wake_on(*_PASSED_ON).reading
        end = None
        while end is None:
            if self._frames is None:
                end = self._connect()
                if end is None and self._frames is None:
                    _wait([], 0.2)
                    continue  # Signals are kept until somebody can be told.
            else:
                ready = _wait([wake, self._frames.sock.fileno()], _LOOKS)
                if self._frames.sock.fileno() in ready:
                    end = self._hear()
            for number in _read(wake):
                self._pass_on(number)
        orders.note_end(self._directory, end)
        self._send({"type": "done"})

    def _connect(self) -> orders.End | None:
        """Turn to the bridge; start one if there is none."""
        if time.monotonic() > self._silent_since + LOST_AFTER:
            state = self._cluster.read()
            why = state.fault if state is not None and state.fault else "it does not answer"
            return lost(f"the Ray cluster {self._order.cluster} was lost: {why}")
        sock = self._cluster.connect()
        if sock is None:
            # A bridge that could not connect has just said so.
            if not self._cluster.bridged() and self._cluster.age() > _LOOKS:
                with contextlib.suppress(OSError):
                    self._cluster.start()
            return None
        self._frames = Frames(sock, LARGEST_REPLY)
        self._send(
            {
                "type": "start",
                "order": self._order,
                "package": self._package,
                "begun": self._begun,
                "written": [self._written[1], self._written[2]],
            }
        )
        if orders.is_stopped(self._directory):
            self._send({"type": "stop"})
        return None

    def _hear(self) -> orders.End | None:
        """Do what the bridge says; returns the end, once it has come."""
        assert self._frames is not None
        try:
            alive = self._frames.fill()
        except OSError:
            alive = False
        while (data := self._frames.take()) is not None:
            self._silent_since = time.monotonic()
            message = msgspec.msgpack.decode(data)
            match message["type"]:
                case "output":
                    self._write(message["stream"], message["data"])
                case "say":
                    print(f"sublet: {message['text']}", file=sys.stderr, flush=True)
                case "started":
                    self._begun = True
                case "pack":
                    self._send_package()
                case "ended":
                    outcome = message["outcome"]
                    return orders.End(
                        None if outcome is None else msgspec.convert(outcome, Outcome),
                        message["how"],
                        message["why"],
                    )
                case "lost":
                    return lost(message["why"])
        if not alive:
            self._frames.close()
            self._frames = None
            self._silent_since = time.monotonic()
        return None

    def _write(self, stream: int, data: bytes) -> None:
        self._written[stream] += len(data)
        try:
            while data and not self._broken:
                data = data[os.write(stream, data) :]
        except BrokenPipeError:
            # Its own write would have failed so.
            self._broken = True
            self._send({"type": "signal", "number": int(signal.SIGPIPE)})
        except OSError:
            pass

    def _send_package(self) -> None:
        """The node has not got the program's directory."""
        package = self._package
        try:
            data = packages.pack(package)
        except (SubletError, OSError) as error:
            self._send({"type": "refuse", "why": str(error)})
            return
        if package["size"] > _LARGE:
            size = format_bytes(package["size"])
            root = os.fsdecode(package["root"])
            print(f"sublet: sends {root} ({size}) to {self._order.node}", file=sys.stderr)
        self._send({"type": "package", "data": data})

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGTERM and orders.is_stopped(self._directory):
            self._send({"type": "stop"})
        elif number in (signal.SIGTSTP, signal.SIGCONT):
            self._send({"type": "pause", "on": number == signal.SIGTSTP})
        else:
            self._send({"type": "signal", "number": number})

    def _send(self, message: dict[str, Any]) -> None:
        if self._frames is None:
            return
        data = msgspec.msgpack.encode(message)
        with contextlib.suppress(OSError):  # It shows when nothing comes any more.
            self._frames.sock.sendall(len(data).to_bytes(4, "big") + data)


def lost(why: str) -> orders.End:
    """Its machine was lost: nothing speaks against another attempt elsewhere."""
    return orders.End(Outcome("lost", 255, message=why))


def _wait(descriptors: list[int], seconds: float) -> list[int]:
    import select

    poll = select.poll()
    for one in descriptors:
        poll.register(one, select.POLLIN)
    return [number for number, _ in poll.poll(seconds * 1000)]


def _read(wake: int) -> Iterator[int]:
    """The signals that have come, without waiting for one."""
    while _wait([wake], 0.0):
        yield from os.read(wake, 4096)


def main() -> None:
    """The keeper here starts this with the attempt's directory."""
    Relay(Path(sys.argv[1])).run()


if __name__ == "__main__":
    main()
