"""The engine's half of each channel: routes, segments and calls of one client.

Reads records and writes answers. Knows nothing of models or of when a call runs.
"""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from sublet.channel import records, segments, tensors
from sublet.channel.codes import REASONS
from sublet.channel.packets import Inbox, Outbox, Outgoing
from sublet.channel.records import Malformed, Record
from sublet.channel.tensors import BESIDE, INLINE, REF, Array, Tensor
from sublet.errors import ServingError

from .model_queue import ModelQueue
from .requests import BatchKind, Request

_MOST_SEGMENTS = 1024
_MOST_UNREAD = 1 << 30
"""Bytes of large answers that a client was sent and has not taken."""
_MOST_BEHIND = 64 << 20
"""Bytes that wait for a client that does not read; then it is given up."""


class Form(NamedTuple):
    """What the heads of a call say, worked out once for all calls that are alike."""

    layout: tuple[Tensor, ...]
    inline: tuple[int, ...]
    """Where the data of each tensor begins behind the references."""
    size: int  # Bytes behind the heads.
    rows: int
    nbytes: int
    key: Hashable  # Key of the batch kind, but for the signature.
    single: tuple[np.dtype[Any], int] | None
    """dtype and count, if it is one tensor of numbers in the record."""


class Route:
    """One way in which this client calls a model."""

    def __init__(self, number: int, fields: dict[str, Any]) -> None:
        self.number = number
        self.model = str(fields["model"])
        version = fields["version"]
        self.version = None if version is None else int(version)
        self.signature = str(fields["signature"])
        self.inputs = tuple(map(str, fields["inputs"]))
        self.outputs = tuple(map(str, fields["outputs"]))
        if len(set(self.inputs)) < len(self.inputs):
            raise Malformed("an input is named twice")
        self.named: tuple[str, ...] | None = None  # The outputs that the client knows it gets.
        self.kinds: dict[Hashable, BatchKind] = {}
        self.queue: ModelQueue | None = None

    def form(self, heads: bytes) -> Form:
        found = _form(heads)
        if len(found.layout) != len(self.inputs):
            raise Malformed("a call has not as many tensors as its route has inputs")
        return found


class Client:
    """One client's connection. It is `dead` once nothing can come from it or go to it."""

    def __init__(
        self, sock: socket.socket, owner: bool = False, buffer: bytearray | None = None
    ) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.owner = owner
        """Whether it is the one that had the engine started: it may load and unload."""
        self.dead = False
        self.calls: dict[int, Request] = {}
        self.routes: dict[int, Route] = {}
        self.inbox = Inbox(sock, bytes, buffer)
        self.outbox = Outbox(sock)
        self._segments: dict[int, Any] = {}
        self._unread: dict[int, int] = {}
        self._unread_bytes = 0
        self._counting = threading.Lock()

    def fileno(self) -> int:
        return self.sock.fileno()

    def open(self, record: Record, data: bytes) -> None:
        try:
            fields = json.loads(text(record, data))
            self.routes[record.route] = Route(record.route, fields)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Malformed("a route is not as agreed") from None

    def attach(self, record: Record, data: bytes, descriptors: Iterator[int]) -> None:
        with taken(descriptors) as memory:
            if record.end - record.at < records.SIZE.size:
                raise Malformed("a segment without a size")
            if len(self._segments) >= _MOST_SEGMENTS:
                raise Malformed("too many segments")
            (size,) = records.SIZE.unpack_from(data, record.at)
            self._segments[record.call] = segments.attach(memory, size)

    def detach(self, record: Record) -> None:
        """Arrays that lie in it keep it mapped for as long as they live."""
        self._segments.pop(record.call, None)

    def owes(self, call: int, nbytes: int) -> bool:
        """Whether it can be sent a large answer: the memory is ours until it has taken it."""
        with self._counting:
            if self._unread_bytes and self._unread_bytes + nbytes > _MOST_UNREAD:
                return False
            self._unread[call] = nbytes
            self._unread_bytes += nbytes
            return True

    def has_taken(self, call: int) -> None:
        """The client has taken the memory of this answer."""
        with self._counting:
            self._unread_bytes -= self._unread.pop(call, 0)

    def arrays(self, form: Form, data: bytes, at: int, end: int) -> list[Array]:
        """The tensors of a call, where they are. Raises Malformed."""
        if at + form.size > end:
            raise Malformed("a call is shorter than its tensors")
        if form.single is not None:
            dtype, count = form.single
            return [np.frombuffer(data, dtype, count, at).reshape(form.layout[0].shape)]
        found = []
        refs, base = at, at
        for tensor, offset in zip(form.layout, form.inline, strict=True):
            if tensor.place == INLINE:
                found.append(tensors.view(tensor, data, base + offset))
                continue
            number, _, where = REF.unpack_from(data, refs)
            refs += REF.size
            memory = self._segments.get(number)
            if memory is None or where + tensor.nbytes > len(memory) or where % 8:
                raise Malformed("a tensor is outside of the memory that it should be in")
            found.append(tensors.view(tensor, memory, where))
        return found

    def body(self, record: Record, data: bytes) -> bytes:
        """The bytes of a question."""
        form = _form(data[record.at : record.at + record.more])
        if len(form.layout) != 1:
            raise Malformed("a question is one tensor")
        (body,) = self.arrays(form, data, record.at + record.more, record.end)
        return body.tobytes()

    def fail(self, call: int, error: ServingError) -> None:
        """Answer a call with an error; goes with the next flush."""
        body = error.message.encode(errors="replace")[: records.INLINE]
        reason = REASONS.index(type(error)) if type(error) in REASONS else 0
        self.put(records.plain(records.FAILED, reason, call, error.code, body))

    def reply(self, call: int, answer: Any) -> None:
        body = np.frombuffer(json.dumps(answer).encode(), np.uint8)
        head, pieces, size, memory = pack([body])
        length = records.HEAD.size + size
        start = records.HEAD.pack(length, records.REPLY, 0, 0, call, len(head))
        self.outbox.put(Outgoing((start, head, *pieces), length, memory))

    def send_event(self, fields: dict[str, Any]) -> None:
        self.put(records.plain(records.EVENT, body=json.dumps(fields).encode()))

    def put(self, record: bytes) -> None:
        self.outbox.put(Outgoing((record,), len(record)))

    def flush(self) -> bool:
        """Send what waits; False if not all could be. A client that does not read is given up."""
        try:
            if self.outbox.flush():
                return True
        except OSError:
            self.give_up()
            return True
        if self.outbox.waiting > _MOST_BEHIND:
            self.give_up()
        return False

    def give_up(self) -> None:
        """From any thread; who watches the socket sees its end, and closes it."""
        self.dead = True
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Called by the thread that watches the socket."""
        self.dead = True
        self.sock.close()
        self.outbox.close()
        self._segments.clear()
        self.routes.clear()
        self.calls.clear()


@contextlib.contextmanager
def taken(descriptors: Iterator[int]) -> Iterator[int]:
    """The next descriptor of a packet, closed at the end whatever is wrong with its record."""
    descriptor = next(descriptors, -1)
    if descriptor < 0:
        raise Malformed("a record without its memory")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def text(record: Record, data: bytes) -> str:
    """The body of a record that is text."""
    return data[record.at : record.end].rstrip(b"\0").decode()


def pack(arrays: list[Array]) -> tuple[bytes, list[Any], int, tuple[int, ...]]:
    """Heads, the pieces behind them, the size of all, and the memory for what is large."""
    heads, refs, pieces, beside = [], [], [], []
    left, size, large = records.INLINE, 0, 0
    for array in arrays:
        number = tensors.number_of(array.dtype)
        raw = tensors.data(array, number)
        nbytes = len(raw) if number == tensors.DT_STRING else raw.nbytes
        place = INLINE if nbytes <= left else BESIDE
        if place == INLINE:
            left -= nbytes
            fill = tensors.pad(nbytes)
            pieces += [raw, bytes(fill)] if fill else [raw]
            size += nbytes + fill
        else:
            refs.append(REF.pack(0, 0, large))
            beside.append((raw, large))
            large = tensors.aligned(large + nbytes)
            size += REF.size
        heads.append(tensors.head(number, array.shape, place, nbytes))
    head = b"".join(heads)
    memory = (_fill(beside, large),) if beside else ()
    return head, [*refs, *pieces], len(head) + size, memory


def _fill(pieces: list[tuple[Any, int]], size: int) -> int:
    memory = segments.create(size)
    try:
        for raw, at in pieces:
            view = memoryview(raw if isinstance(raw, bytes) else raw.reshape(-1).view(np.uint8))
            done = 0
            # Not through a mapping: this way no page has to be cleared first.
            while done < view.nbytes:
                done += os.pwrite(memory, view[done:], at + done)
    except BaseException:
        os.close(memory)
        raise
    return memory


@lru_cache(4096)
def _form(heads: bytes) -> Form:
    layout = tensors.layout(heads)
    at = sum(REF.size for tensor in layout if tensor.place == BESIDE)
    inline = []
    for tensor in layout:
        inline.append(at)
        if tensor.place == INLINE:
            at += tensor.nbytes + tensors.pad(tensor.nbytes)
    first = layout[0].shape if layout else ()
    rows = first[0] if first else 1
    alike = all(tensor.shape[:1] == first[:1] for tensor in layout)
    tails = tuple(
        (tensor.dtype, tensor.shape[1:] if alike and first else None, len(tensor.shape))
        for tensor in layout
    )
    single = None
    if len(layout) == 1 and layout[0].place == INLINE and layout[0].dtype != tensors.DT_STRING:
        dtype = tensors.dtype_of(layout[0].dtype)
        if layout[0].nbytes:
            single = dtype, layout[0].nbytes // dtype.itemsize
    nbytes = sum(tensor.nbytes for tensor in layout)
    return Form(layout, tuple(inline), at, rows, nbytes, tails, single)
