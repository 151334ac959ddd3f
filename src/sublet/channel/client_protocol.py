"""The client's half of a channel, without any I/O: calls become records, packets become answers.

`AsyncClient` and `SyncClient` put it on a socket, for asyncio and for threads.
"""

import json
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sublet.errors import ServingError

from . import records, segments, tensors
from .codes import REASONS, Code
from .packets import Outgoing, Packet
from .records import Malformed
from .tensors import BESIDE, INLINE, REF, Array


class Answer(NamedTuple):
    """The outputs of one call, and where its time went."""

    outputs: dict[str, np.ndarray[Any, Any]]
    queued: float = 0.0  # Seconds until its batch began.
    computed: float = 0.0  # Seconds that its batch took.
    rows: int = 0  # Rows of that batch, others' included.


_FAR = 1e9
"""Seconds: a deadline later than that (30 years after the machine was started) is none; one in
584 years does not fit into a record."""
Put = Callable[[Outgoing], None]
_RouteKey = tuple[str, int | None, str, tuple[str, ...], tuple[str, ...]]
"""A model, a version, a signature, and the names of inputs and outputs."""
Outcome = tuple[Any, Answer | dict[str, Any] | ServingError]  # The owner of a call, and its result.


class _Pending(NamedTuple):
    owner: Any
    route: int
    used: tuple[segments.Segment | Array, ...]
    """Segments to put back after the answer, and the user's buffers, which must live until then."""

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.used)


class ClientProtocol:
    """One connection's routes, calls in flight and memory. Threads may share it. `put` takes
    each record, in order. A call that cannot be sent raises TypeError, and leaves nothing
    behind."""

    def __init__(self, put: Put) -> None:
        self.segments = segments.Segments()
        self.abandoned = 0
        """Bytes of calls that were cancelled and are not answered: they are not ours yet."""
        self._put = put
        self._routes: dict[_RouteKey, int] = {}
        self._outputs: dict[int, list[str]] = {}
        self._pending: dict[int, _Pending] = {}
        self._last = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def routes(self) -> int:
        """In how many ways models were called; the engine knows each as long as we are there."""
        return len(self._routes)

    def send_call(
        self,
        owner: Any,
        model: str,
        version: int | None,
        signature: str,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] = (),
        deadline: float | None = None,
        priority: int = 0,
    ) -> int:
        """Send a call; its number. The arrays are not to be changed until it is answered."""
        until = 0
        if deadline is not None and deadline < _FAR:
            until = max(1, int(deadline * 1e9))
        key = (model, version, signature, tuple(inputs), tuple(outputs))
        return self._send(owner, list(inputs.values()), key, max(-128, min(127, priority)), until)

    def send_question(self, owner: Any, question: Mapping[str, Any]) -> int:
        """Ask the engine itself; the number of the question."""
        return self._send(owner, [np.frombuffer(json.dumps(question).encode(), np.uint8)])

    def cancel(self, number: int) -> bool:
        """The answer is not wanted any more; it comes, but is dropped. False if it has come."""
        with self._lock:
            pending = self._pending.get(number)
            if pending is None:
                return False
            if pending.owner is not None:
                self._pending[number] = pending._replace(owner=None)
                self.abandoned += pending.nbytes
            self._put_plain(records.CANCEL, call=number)
            return True

    def receive(self, packet: Packet) -> Iterator[Outcome]:
        """What this packet answers; events come with EVENT for their owner. Raises Malformed."""
        beside = iter(packet.descriptors)
        try:
            for record in records.read(packet.data):
                try:
                    finished = self._take(record, packet.data, beside)
                except (ValueError, KeyError, TypeError, struct.error) as error:
                    raise Malformed("an answer is not as agreed") from error
                if finished is not None:
                    yield finished
        finally:
            for number in beside:
                os.close(number)

    def fail(self, error: ServingError) -> Iterator[Outcome]:
        """The connection is lost: everything that is in flight has failed."""
        with self._lock:
            lost = list(self._pending.values())
            self._pending.clear()
        for pending in lost:
            if pending.owner is not None:
                # One for each: whoever raises it adds a traceback.
                yield pending.owner, ServingError(error.message, error.code)

    def buffer(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array that is sent without a copy."""
        with self._lock:
            return self.segments.lend(shape, dtype)

    def _send(
        self,
        owner: Any,
        values: list[Any],
        key: _RouteKey | None = None,
        urgency: int = 0,
        until: int = 0,
    ) -> int:
        """Send a call on the route of this key, or a question if there is none."""
        heads, pieces, size, used = self._tensors(values)
        with self._lock:
            try:
                number, route = self._free_number(), 0
                if key is None:
                    length = records.HEAD.size + len(heads) + size
                    head = records.HEAD.pack(length, records.ASK, 0, 0, number, len(heads))
                else:
                    known = self._routes.get(key)
                    route = self._open(key) if known is None else known
                    length = records.CALL_HEAD.size + len(heads) + size
                    head = records.CALL_HEAD.pack(
                        length, records.CALL, urgency, route, number, len(heads), until
                    )
                self._put(Outgoing((head, heads, *pieces), length))
            except BaseException:
                self._put_back(used)
                raise
            self._pending[number] = _Pending(owner, route, used)
        return number

    def _open(self, key: _RouteKey) -> int:
        route = len(self._routes)
        if route >= records.MOST_ROUTES:
            raise ServingError(
                "Too many ways to call models on one connection; make a new one.",
                Code.RESOURCE_EXHAUSTED,
            )
        names = ("model", "version", "signature", "inputs", "outputs")
        fields = dict(zip(names, key, strict=True))
        self._put_plain(records.OPEN, route=route, body=json.dumps(fields).encode())
        self._routes[key] = route
        return route

    def _put_plain(self, kind: int, route: int = 0, call: int = 0, body: bytes = b"") -> None:
        record = records.plain(kind, route, call, body=body)
        self._put(Outgoing((record,), len(record)))

    def _free_number(self) -> int:
        number = self._last
        while True:
            number = number + 1 if number + 1 < records.MOST_CALLS else 1
            if number not in self._pending:
                break
        self._last = number
        return number

    def _put_back(self, used: Iterable[segments.Segment | Array]) -> None:
        """Make a call's memory free for reuse. The caller holds the lock."""
        for one in used:
            if isinstance(one, segments.Segment):
                self.segments.put_back(one)
        while self.segments.dropped:
            self._put_plain(records.DROP, call=self.segments.dropped.pop())

    def _tensors(
        self, values: list[Any]
    ) -> tuple[bytes, list[Any], int, tuple[segments.Segment | Array, ...]]:
        """Heads, the pieces that follow them, their size, and what is in use until the answer."""
        if len(values) == 1 and type(values[0]) is np.ndarray:
            # By far the most calls are like this.
            array = values[0]
            if array.nbytes <= records.INLINE and array.flags.c_contiguous:
                number = tensors.known(array.dtype)
                if number is not None and number != tensors.DT_STRING:
                    heads = tensors.head(number, array.shape, INLINE, array.nbytes)
                    rest = tensors.pad(array.nbytes)
                    pieces = [array, bytes(rest)] if rest else [array]
                    return heads, pieces, array.nbytes + rest, ()
        parts = [_part(value) for value in values]
        found: list[bytes] = []
        refs, pieces = [], []
        used: list[segments.Segment | Array] = []
        left, size = records.INLINE, 0
        try:
            for number, shape, raw, nbytes in parts:
                place = INLINE if nbytes <= left else BESIDE
                found.append(tensors.head(number, shape, place, nbytes))
                if place == INLINE:
                    left -= nbytes
                    pieces += [raw, bytes(tensors.pad(nbytes))]
                    size += nbytes + tensors.pad(nbytes)
                    continue
                segment, offset = self._store(raw, nbytes, used)
                refs.append(REF.pack(segment.number, 0, offset))
                size += REF.size
        except BaseException:
            with self._lock:
                self._put_back(used)
            raise
        return b"".join(found), [*refs, *pieces], size, tuple(used)

    def _store(
        self, raw: Any, nbytes: int, used: list[segments.Segment | Array]
    ) -> tuple[segments.Segment, int]:
        """The segment that has these bytes, and where. Adds it to `used`, or the array, if that
        lies in a buffer of the user's."""
        with self._lock:
            lent = self.segments.find_lent(raw) if isinstance(raw, np.ndarray) else None
            segment, offset = (self.segments.take(nbytes), 0) if lent is None else lent
            used.append(segment if lent is None else raw)
            if not segment.shared:
                body = records.SIZE.pack(segment.size)
                record = records.plain(records.SEGMENT, call=segment.number, body=body)
                self._put(Outgoing((record,), len(record), (segment.hand_over(),)))
        if lent is None:
            # Not under the lock: it may take a while.
            into = np.frombuffer(segment.memory, np.uint8, nbytes)
            if isinstance(raw, bytes):
                into[:] = np.frombuffer(raw, np.uint8)
            else:
                np.copyto(into.view(raw.dtype).reshape(raw.shape), raw)
        return segment, offset

    def _take(
        self, record: records.Record, data: bytes | bytearray, beside: Iterator[int]
    ) -> Outcome | None:
        kind = record.kind
        if kind == records.ROUTE:
            names = json.loads(bytes(records.body(data, record)).rstrip(b"\0"))
            self._outputs[record.route] = names
            return None
        if kind == records.EVENT:
            fields = json.loads(bytes(records.body(data, record)).rstrip(b"\0"))
            return records.EVENT, fields
        if kind not in (records.ANSWER, records.REPLY, records.FAILED):
            raise Malformed(f"an engine does not send records of kind {kind}")
        with self._lock:
            pending = self._pending.pop(record.call, None)
            if pending is None:
                raise Malformed("an answer to no call")
            if pending.owner is None:
                self.abandoned -= pending.nbytes
            self._put_back(pending.used)
        result: Answer | dict[str, Any] | ServingError
        if kind == records.FAILED:
            text = bytes(records.body(data, record)).rstrip(b"\0").decode(errors="replace")
            kind_of_error = REASONS[record.route] if record.route < len(REASONS) else ServingError
            result = kind_of_error(text, _code(record.more))
        elif kind == records.REPLY:
            (body,) = self._arrays(record, data, record.at, beside)
            result = json.loads(body.tobytes())
        else:
            queued, computed, rows = records.TIMES.unpack_from(data, record.at)
            arrays = self._arrays(record, data, record.at + records.TIMES.size, beside)
            outputs = dict(zip(self._outputs[pending.route], arrays, strict=True))
            result = Answer(outputs, queued * 1e-6, computed * 1e-6, rows)
        return None if pending.owner is None else (pending.owner, result)

    def _arrays(
        self, record: records.Record, data: bytes | bytearray, at: int, beside: Iterator[int]
    ) -> list[Array]:
        layout = tensors.layout(bytes(data[at : at + record.more]))
        at += record.more
        large = [tensor for tensor in layout if tensor.place == BESIDE]
        memory, found = None, []
        places: list[int] = []
        if large:
            for _ in large:
                places.append(REF.unpack_from(data, at)[2])
                at += REF.size
            # Its memory is as large as these need.
            ends = [place + tensor.nbytes for tensor, place in zip(large, places, strict=True)]
            memory = _attach(next(beside, -1), max(ends))
            self._put_plain(records.TAKEN, call=record.call)
        for tensor in layout:
            if tensor.place == BESIDE:
                found.append(tensors.view(tensor, memory, places.pop(0)))
                continue
            if at + tensor.nbytes > record.end:
                raise Malformed("a tensor does not fit into its record")
            found.append(tensors.view(tensor, data, at))
            at += tensor.nbytes + tensors.pad(tensor.nbytes)
        return found


def _part(value: Any) -> tuple[int, tuple[int, ...], Any, int]:
    """dtype, shape, bytes, and how many. Raises TypeError for what no model takes."""
    array = np.asarray(value)
    number = tensors.number_of(array.dtype)
    raw = tensors.data(array, number)
    return number, array.shape, raw, len(raw) if isinstance(raw, bytes) else raw.nbytes


def _attach(descriptor: int, size: int) -> Any:
    """Map the memory of an answer."""
    if descriptor < 0:
        raise Malformed("an answer's memory is missing")
    try:
        return segments.attach(descriptor, size, write=True)
    finally:
        os.close(descriptor)


def _code(number: int) -> Code:
    try:
        return Code(number)
    except ValueError:
        return Code.UNKNOWN
