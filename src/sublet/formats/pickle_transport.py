"""Python objects between a pool and its worker, over a SOCK_SEQPACKET socket.

One object is one packet. Large parts travel beside it in anonymous shared memory (memfd): the
sender writes them there once, the receiver maps them, and arrays are views of that mapping, neither
pickled nor copied again. The memory is freed with the last array that lives in it.

    packet   kind (1 byte), call (8), lengths: of the pickle, and of each buffer beside it
    memfd    the pickle, if it is not in the packet, then the buffers, each at a multiple of 64

Needs cloudpickle to pack, and to unpack lambdas or functions of `__main__`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import socket
import struct
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

CHANNEL = 3
"""The worker's descriptor of the socket."""
OPENING, CALL, RESULT, FAILURE, MESSAGE = range(1, 6)
"""Kinds of packets. The pool sends an OPENING, then CALLs. The worker answers each call with a
RESULT or a FAILURE, and may send a MESSAGE for the user at any time."""
LAST = 0x80
"""Set in the kind of an answer after which the worker takes no more calls."""

_HEAD = struct.Struct("<BQII")
"""Kind, call, bytes of the pickle that follow in the packet, number of lengths in the memfd."""
_LENGTH = struct.Struct("<Q")
_LARGE = 32 * 1024
"""Bytes from which a buffer or a pickle travels beside the packet."""
_ALIGNED = 64
"""TensorFlow's alignment of tensors, so that it can use an array's memory as it is."""
_LARGEST = _HEAD.size + 2 * _LARGE
_ONE_DESCRIPTOR = socket.CMSG_LEN(struct.calcsize("i"))
_PLAIN = (type(None), bool, int, float, str, bytes)
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)


class PickledObject(NamedTuple):
    """A packed object: its pickle, and the large buffers that are not in the pickle."""

    body: bytes
    buffers: list[Any]


class NoPacket(Exception):
    """Something else than `send` has written to the socket."""


class PicklePacket(NamedTuple):
    """A packet that has arrived; `unpack` makes the object of it."""

    kind: int
    call: int
    body: bytes | memoryview
    buffers: list[memoryview]


def pack(value: Any) -> PickledObject:
    """Pickle an object without copying its large buffers. Raises what pickling raises."""
    if _is_plain(value):
        return PickledObject(pickle.dumps(value, protocol=5), [])
    import cloudpickle

    buffers: list[Any] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        """Return whether this buffer stays in the pickle."""
        with buffer.raw() as raw:
            if raw.nbytes < _LARGE:
                return True
        buffers.append(buffer)
        return False

    body = cloudpickle.dumps(value, protocol=5, buffer_callback=keep)
    return PickledObject(body, buffers)


def in_one_piece(value: Any) -> bytes:
    """Pickle an object including its buffers."""
    import cloudpickle

    return bytes(cloudpickle.dumps(value, protocol=5))


def unpack(packet: PicklePacket) -> Any:
    """The object, whose arrays live in shared memory. Raises what unpickling raises."""
    return pickle.loads(packet.body, buffers=packet.buffers)


def send(sock: socket.socket, kind: int, call: int, packed: PickledObject) -> None:
    """Send one object; blocks while the receiver is behind. Raises OSError if it is gone."""
    inline = len(packed.body) < _LARGE
    body = packed.body if inline else b""
    beside = ([] if inline else [packed.body]) + packed.buffers
    if not beside:
        sock.send(_HEAD.pack(kind, call, len(body), 0) + body)
        return
    memory = os.memfd_create("sublet", os.MFD_CLOEXEC)
    try:
        _fill(memory, beside)
        head = _HEAD.pack(kind, call, len(body), len(beside))
        socket.send_fds(sock, [head + body], [memory])
    finally:
        os.close(memory)


def receive(sock: socket.socket, wait: bool = True) -> PicklePacket | None:
    """The next packet; None if the other end is gone. Raises BlockingIOError if there is none and
    `wait` is false, and NoPacket for something that `send` has not written."""
    flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
    try:
        # Not socket.recv_fds: it drops the flags.
        data, beside, _, _ = sock.recvmsg(_LARGEST, _ONE_DESCRIPTOR, flags)
    except ConnectionError:
        return None
    if not data:
        return None
    memory = struct.unpack("i", beside[0][2])[0] if beside else None
    try:
        kind, call, length, count = _HEAD.unpack_from(data)
        body = data[_HEAD.size : _HEAD.size + length]
        if not count:
            return PicklePacket(kind, call, body, [])
        if memory is None:
            raise NoPacket("no memory came with it")
        pieces = list(_map(memory, count))
    except (struct.error, ValueError, OSError) as error:
        raise NoPacket(str(error)) from error
    finally:
        if memory is not None:
            os.close(memory)
    return PicklePacket(kind, call, body if length else pieces.pop(0), pieces)


def _fill(memory: int, pieces: list[Any]) -> None:
    """Write the table of lengths, then the pieces. A mapping would have to clear its pages."""
    with contextlib.ExitStack() as stack:
        views = [stack.enter_context(_raw(piece)) for piece in pieces]
        table = b"".join(_LENGTH.pack(view.nbytes) for view in views)
        at = 0
        for view in (memoryview(table), *views):
            done = 0
            while done < view.nbytes:
                done += os.pwrite(memory, view[done:], at + done)
            at = _next(at + view.nbytes)
        os.ftruncate(memory, max(at, 1))


def _map(memory: int, count: int) -> Iterator[memoryview]:
    whole = memoryview(mmap.mmap(memory, 0, flags=mmap.MAP_SHARED | _POPULATE))
    at = _next(count * _LENGTH.size)
    for number in range(count):
        (length,) = _LENGTH.unpack_from(whole, number * _LENGTH.size)
        if at + length > len(whole):
            raise NoPacket("a piece is longer than what came")
        yield whole[at : at + length]
        at = _next(at + length)


def _is_plain(value: Any) -> bool:
    """Whether the standard library's pickle, which is faster, does the same as cloudpickle: for a
    few plain values, and for functions that can be imported by name."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind in (tuple, list):
        return len(value) < 10 and all(map(_is_plain, value))
    if kind is dict:
        return not value
    if kind is types.FunctionType and value.__module__ != "__main__":
        home = sys.modules.get(value.__module__)
        return getattr(home, value.__qualname__, None) is value
    return False


def _raw(piece: Any) -> memoryview:
    return piece.raw() if isinstance(piece, pickle.PickleBuffer) else memoryview(piece)


def _next(offset: int) -> int:
    """The next offset at which a piece may begin."""
    return -(-offset // _ALIGNED) * _ALIGNED
