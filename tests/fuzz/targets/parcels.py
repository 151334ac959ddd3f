"""Packets of a pool's channel. Both ends run the user's own code, so pickles are not fed here."""

import contextlib
import os
import socket

from fuzz.driver import Random, Target
from sublet.formats import pickle_transport


def target() -> Target:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = len(os.listdir("/proc/self/fd"))
    seeds = [
        b"\0" + pickle_transport._HEAD.pack(3, 7, 5, 0) + b"12345",
        b"\1"
        + pickle_transport._HEAD.pack(3, 7, 5, 1)
        + b"12345"
        + pickle_transport._LENGTH.pack(64)
        + bytes(128),
        b"\2"
        + pickle_transport._HEAD.pack(3, 7, 0, 2)
        + pickle_transport._LENGTH.pack(8) * 2
        + bytes(256),
    ]

    def feed(data: bytes) -> None:
        """The first byte says how much shared memory goes beside: none, all, or an odd file."""
        how, data = data[:1], data[1 : 1 << 16]
        memory = None
        if not data:
            return
        try:
            if how == b"\0":
                ours.send(data)
            else:
                memory = os.memfd_create("fuzz")
                if how != b"\3":
                    os.write(memory, data[22:])
                socket.send_fds(ours, [data], [memory])
            with contextlib.suppress(pickle_transport.NoPacket):
                packet = pickle_transport.receive(theirs)
                assert packet is None or len(packet.body) <= len(data)
        finally:
            if memory is not None:
                os.close(memory)

    def check() -> None:
        assert len(os.listdir("/proc/self/fd")) <= before, "descriptors were left open"

    def close() -> None:
        ours.close()
        theirs.close()

    return Target(feed, seeds, make, close, check)


def make(chance: Random) -> bytes:
    head = pickle_transport._HEAD.pack(
        chance.randrange(256), chance.randrange(9), chance.randrange(9), chance.choice((0, 1, 2, 9))
    )
    return bytes([chance.randrange(4)]) + head + chance.randbytes(chance.randrange(300))
