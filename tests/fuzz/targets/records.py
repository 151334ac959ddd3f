"""Packets of the channel between clients and an engine, read by both ends."""

import contextlib
import json
import os
import socket
import tempfile
import traceback
from functools import partial
from typing import Any

import numpy as np

from fuzz.driver import Random, Target
from sublet.channel import records, segments, tensors
from sublet.channel.client_protocol import ClientProtocol
from sublet.channel.packets import Outgoing, Packet
from sublet.channel.records import Malformed
from sublet.channel.tensors import BESIDE, INLINE, REF
from sublet.engine.client_channels import Client
from sublet.engine.engine import Engine
from support.numpy_engine import FLOAT, NumpyModels

_PAIR = socket.AF_UNIX, socket.SOCK_SEQPACKET
_NAMES = ("double", "words", "both", "nothing")


class Place:
    """An engine that runs nothing: its threads are not started, so what is read waits."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="sublet-fuzz-")
        ours, theirs = socket.socketpair(*_PAIR)
        self._ours = ours
        path = os.path.join(self._directory.name, "engine.sock")
        self.engine = Engine(path, theirs, 1, partial(NumpyModels, cache=""))
        for name in _NAMES[:3]:
            self.engine.scheduler.add(name, 1, self._directory.name, {})
        self.engine._tell_owner = lambda *_: None  # type: ignore[method-assign]
        self._memory = segments.create(1 << 16)
        self._print = traceback.print_exc
        traceback.print_exc = self._fail
        self._descriptors = len(os.listdir("/proc/self/fd"))

    def feed(self, data: bytes) -> None:
        """The first byte says how many descriptors come along."""
        count, packet = (data[0] % 5, data[1:]) if data else (0, b"")
        if packet:
            self._to_engine(packet[: records.LARGEST_PACKET], count)
            self._to_client(packet, count)

    def _to_engine(self, packet: bytes, count: int) -> None:
        mine, theirs = socket.socketpair(*_PAIR)
        with mine, theirs:
            client = Client(theirs, buffer=self.engine._buffer)
            self.engine._add(client)
            socket.send_fds(mine, [packet], [self._memory] * count)
            self.engine._read(client)
            if not client.dead:
                self.engine._lose(client)
            assert not client.calls

    def _to_client(self, packet: bytes, count: int) -> None:
        protocol = ClientProtocol(_drop)
        for number in range(3):
            protocol.send_call(number, "m", 1, "s", {"x": np.zeros(3, np.float32)})
        descriptors = [os.dup(self._memory) for _ in range(count)]
        with contextlib.suppress(Malformed):
            list(protocol.receive(Packet(bytearray(packet), descriptors)))

    def check(self) -> None:
        assert len(os.listdir("/proc/self/fd")) <= self._descriptors

    def close(self) -> None:
        traceback.print_exc = self._print
        for one in (self._ours, self.engine._owner.sock, self.engine._listener):
            one.close()
        self.engine._epoll.close()
        self.engine._spare.close()
        os.close(self.engine._bell)
        os.close(self._memory)
        self._directory.cleanup()

    @staticmethod
    def _fail(*_: Any, **__: Any) -> None:
        raise


def target() -> Target:
    place = Place()
    return Target(place.feed, _seeds(), make, place.close, place.check)


def make(chance: Random) -> bytes:
    """Records of all kinds; or a call that a client makes of some arrays."""
    if chance.random() < 0.3:
        return b"\1" + _sent(chance)
    parts = [bytes((chance.randrange(5),))]
    for _ in range(chance.randrange(1, 6)):
        kind = chance.choice((*range(10), *range(64, 71), 255))
        body = chance.choice(
            (
                chance.randbytes(chance.randrange(40)),
                json.dumps({"ask": chance.choice(("hello", "models", "pulse", "add", 3))}).encode(),
                _route(chance.choice(_NAMES)),
                records.SIZE.pack(chance.choice((0, 1, 4096, 1 << 16, 1 << 40))),
            )
        )
        more = chance.choice((0, 16, 24, 32, len(body), 2**32 - 1))
        parts.append(records.plain(kind, chance.randrange(2), chance.randrange(4), more, body))
    return b"".join(parts)


def _drop(record: Outgoing) -> None:
    for number in record.descriptors:
        os.close(number)


def _route(model: str, inputs: tuple[str, ...] = ("x",)) -> bytes:
    route = {"model": model, "version": 1, "signature": "serving_default", "inputs": inputs}
    return json.dumps({**route, "outputs": []}).encode()


def _sent(chance: Random) -> bytes:
    """What a client sends for a call: the engine has to understand all of it."""
    said: list[Outgoing] = []
    protocol = ClientProtocol(said.append)
    shape = tuple(chance.randrange(4) for _ in range(chance.randrange(5)))
    dtype = chance.choice(("f4", "f8", "i1", "i8", "?", "c8", "f2", "O"))
    array: Any = np.zeros(shape, dtype)
    if dtype == "O":
        array.fill(b"ab" * chance.randrange(3))
    protocol.send_call(0, chance.choice(_NAMES), 1, "serving_default", {"x": array})
    pieces = [piece for one in said for piece in one.pieces]
    return b"".join(one.tobytes() if isinstance(one, np.ndarray) else one for one in pieces)


def _seeds() -> tuple[bytes, ...]:
    opened = records.plain(records.OPEN, body=_route("double"))
    head = tensors.head(FLOAT, (1, 2), INLINE, 8)
    call = records.CALL_HEAD.pack(32 + len(head), records.CALL, 0, 0, 1, len(head), 0)
    large = tensors.head(FLOAT, (1, 64), BESIDE, 256)
    beside = records.CALL_HEAD.pack(40 + len(large), records.CALL, 0, 0, 2, len(large), 0)
    segment = records.plain(records.SEGMENT, call=1, body=records.SIZE.pack(1 << 16))
    body = b'{"ask": "models"}'
    asked = tensors.head(4, (len(body),), INLINE, len(body))
    ask = records.plain(records.ASK, call=3, more=len(asked), body=asked + body)
    answer = records.ANSWER_HEAD.pack(40 + len(head), records.ANSWER, 0, 0, 1, len(head), 1, 1, 1)
    names = records.plain(records.ROUTE, body=b'["y"]')
    return (
        b"\0" + opened + call + head + bytes(8),
        b"\1" + opened + segment + beside + large + REF.pack(1, 0, 64),
        b"\0" + opened + call + head + bytes(8) + records.plain(records.CANCEL, call=1),
        b"\2" + segment + records.plain(records.DROP, call=1) + records.plain(records.RECORDER),
        b"\0" + ask,
        b"\0" + names + answer + head + bytes(8),
        b"\1" + records.plain(records.FAILED, call=2, more=3, body=b"why"),
        b"\0" + records.plain(records.EVENT, body=b'{"event": "loading"}'),
    )
