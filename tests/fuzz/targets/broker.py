"""A broker in a process of its own, at the other end of its real socket.

The inputs are those of `requests`. Whatever came, the same process goes on and answers.
"""

import contextlib
import os
import socket

from fuzz import scratch
from fuzz.driver import Target
from fuzz.targets import requests
from sublet.wire.frames import Frames
from sublet.wire.messages import AskStatus, Snapshot, decode_reply, encode
from support.sandbox import Sandbox, wait_for

_EVERY = 20
"""Inputs after which it is asked how it is."""


def target() -> Target:
    root = scratch.directory()
    # Room for nothing: what is accepted waits, and no program is started.
    sandbox = Sandbox(root / "home", root / "work", SUBLET_CPU_MEMORY="1MiB")
    pid = sandbox.status()["pid"]
    fed = 0

    def feed(data: bytes) -> None:
        nonlocal fed
        if b"\xa4down" in data:
            return  # That ends it, as it should.
        with _connected(sandbox) as sock:
            null = os.open(os.devnull, os.O_RDWR)
            with contextlib.suppress(OSError):
                socket.send_fds(sock, [data[1:] or b"\0"], [null] * (data[0] % 6 if data else 0))
            os.close(null)
        fed += 1
        if fed % _EVERY == 0:
            check()

    def check() -> None:
        assert _asked(sandbox) == pid, "it was another broker that answered"
        wait_for(lambda: len(os.listdir(f"/proc/{pid}/fd")) < 100, "descriptors are closed")

    return Target(feed, requests.seeds(), requests.make, sandbox.close, check)


def _connected(sandbox: Sandbox) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(20.0)
    sock.connect(str(sandbox.home / "broker.sock"))
    return sock


def _asked(sandbox: Sandbox) -> int:
    """The number of the process that answers."""
    frames = Frames(_connected(sandbox))
    frames.send(encode(AskStatus()))
    try:
        while (data := frames.take()) is None:
            assert frames.fill(), "it has hung up"
        reply = decode_reply(data)
        assert isinstance(reply, Snapshot), reply
        return reply.pid
    finally:
        frames.close()
