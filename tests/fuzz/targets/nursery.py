"""What a nursery hears from its broker: orders as packets of JSON, with descriptors.

A real one, but for TensorFlow. It goes on, and leaves no process behind for an order that makes no
sense.

    how many descriptors (1 byte), the packet
"""

import json
import os
import socket
import subprocess
import sys

from fuzz import scratch
from fuzz.driver import Random, Target
from sublet.keeper import process_tree
from support.sandbox import wait_for

_SERVE = """
import os, socket, sys
from sublet.nursery import nursery
nursery._serve(socket.socket(fileno=int(sys.argv[1])))
os._exit(0)
"""
_MOST = 12
"""Its pair that waits, and those that are just ending."""


def target() -> Target:
    root = scratch.directory()
    (root / "1.1").mkdir()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    nursery = subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stderr=subprocess.DEVNULL,
    )
    theirs.close()

    def feed(data: bytes) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        try:
            number = data[0] % 8 if data else 0
            socket.send_fds(ours, [data[1 : 1 << 15] or b"{}"], [null] * number)
        finally:
            os.close(null)
        # Its words about children that have ended.
        ours.setblocking(False)
        try:
            while ours.recv(1 << 16):
                pass
        except BlockingIOError:
            pass
        ours.setblocking(True)
        assert nursery.poll() is None, "it has ended"
        wait_for(lambda: len(process_tree.descendants(nursery.pid)) < _MOST, "pairs have ended")

    def check() -> None:
        assert nursery.poll() is None, "it has ended"
        wait_for(lambda: len(process_tree.descendants(nursery.pid)) <= 2, "only its pair is left")
        assert len(os.listdir(f"/proc/{nursery.pid}/fd")) < 20, "descriptors stay open"

    def close() -> None:
        nursery.kill()
        nursery.wait()
        ours.close()

    orders: tuple[dict[str, str], ...] = ({"start": str(root / "1.1")}, {"start": "/nowhere"}, {})
    return Target(feed, [b"\4" + json.dumps(one).encode() for one in orders], make, close, check)


def make(chance: Random) -> bytes:
    odd: tuple[object, ...] = (None, True, "", "/", "\0", [], {}, -1, 1e400, "x" * 5000)
    fields = {name: chance.choice(odd) for name in chance.sample(("start", "stop", "x"), 2)}
    return bytes([chance.randrange(8)]) + json.dumps(fields).encode()
