"""The requests of one model that wait: in which order, how many, and which make one batch.

Pure: no clock, no threads, no TensorFlow. Times are seconds of one clock, given by the caller.
"""

from collections import deque
from collections.abc import Hashable, Iterator

from sublet.channel.codes import QueueFull
from sublet.errors import ServingError

from .activity import Activity
from .memory import Need
from .model_options import Options
from .requests import Batch, BatchKind, Part, Request

_MERGED = 4 << 20
"""Bytes up to which requests are merged: beyond it the copy costs more than the batch saves."""
_WHILE_LOADING = 16
"""How many times as many may wait for a model that is not in memory."""
_LONGEST_WAIT = 30.0
"""Seconds of work that a call may find before it if it has no deadline."""
_PART_OF_DEADLINE = 0.5
"""The part of a call's time that it may have to wait; the rest is for running, and for errors of
the estimate: a queue in which calls run just before their deadline would answer many too late."""
_MOST_ROWS = 1 << 18
"""Rows that may wait, however fast the model is: each request takes memory here."""
_SAMPLES = 7
"""Batches whose pace is remembered. The median counts, so that one slow batch, as the first often
is, says nothing."""
_FIRST_PIECE = 256
_PIECE = 0.05
"""Seconds that a piece of a large request should take, so that others can go between."""


class ModelQueue:
    """One version of one model. Higher priorities go first; the first of them decides the kind."""

    def __init__(self, model: str, version: int, options: Options) -> None:
        self.model = model
        self.version = version
        self.options = options
        self.limit = options.largest
        """Rows of the next batch at most; below `largest` while a latency target asks for it."""
        self.rows = 0  # Rows that wait.
        self.running = 0  # Batches that run.
        self.present = False
        """Whether the model is in memory; if not, nothing is due."""
        self.proven = False
        """Whether it was ever in memory; until then calls that name no version go elsewhere."""
        self.retired = False
        """Whether it is about to be taken away: calls that name no version go elsewhere."""
        self.exclusive = False  # Whether its batches run one after another.
        self.removed = False  # Whether the model is served no more.
        self.number = 0
        """Its number in the engine's flight recorder."""
        self.suspect = 0.0
        """Until when it may be why an engine has ended: no other suspect is loaded, or runs,
        meanwhile."""
        self.loading = False
        self.kinds: dict[Hashable, BatchKind] = {}
        self.needs: dict[str, Need] = {}  # By signature.
        self.seconds = 0.0  # Expected of a batch.
        self.per_row = 0.0
        self.asked = 0.0  # When the last request came.
        self.requests = 0  # Taken into batches so far.
        self.batches = 0
        self.activity = Activity()
        self.pace = 0.0
        """Seconds in which one of the rows that wait leaves, while others wait behind it; 0 if that
        is not known. What runs beside it, of this model or of others, is in it."""
        self._paces: deque[float] = deque(maxlen=_SAMPLES)
        self._moved = 0.0
        """When rows last left the queue, or the first came into an empty one."""
        self._behind = False  # Whether rows have waited since then.
        self._waiting: dict[int, dict[BatchKind, deque[Request]]] = {}
        self._order: list[int] = []

    def put(self, request: Request) -> ServingError | None:
        """Queue a request; an error if the queue is full."""
        rows = request.rows or 1
        kind = request.kind
        self.asked = request.arrived
        if kind.need.bounded:
            size = request.nbytes if kind.alone else request.nbytes / rows
            if (refused := kind.need.refusal(size, request.arrived)) is not None:
                return refused
        if kind.alone or not self.options.fixed:
            # It is one batch, however long it is, or pieces whose size is ours to choose.
            rows = min(rows, self.options.largest)
        if not self.rows:
            self._moved = request.arrived
        elif full := self._full(request, rows):
            return QueueFull(full)
        self.rows += rows
        request.waits = rows
        by_kind = self._waiting.get(request.priority)
        if by_kind is None:
            by_kind = self._waiting[request.priority] = {}
            self._order = sorted(self._waiting, reverse=True)
        waiting = by_kind.get(kind)
        if waiting is None:
            waiting = by_kind[kind] = deque()
        waiting.append(request)
        return None

    def _full(self, request: Request, rows: int) -> str:
        """Why there is no place for a request that counts for so many rows; empty if there is."""
        enqueued, largest = self.options.enqueued, self.options.largest
        if enqueued is not None:
            bound = enqueued * largest * (1 if self.present else _WHILE_LOADING)
            if self.rows + rows <= bound:
                return ""
            # As TensorFlow Serving says it.
            return (
                "The batch scheduling queue to which this task was submitted is full; currently "
                f"{-(-self.rows // largest)} batches enqueued and max_enqueued_batches is "
                f"{enqueued}"
            )
        if self.rows + rows > _MOST_ROWS:
            return f"The queue of {self.model} is full: {self.rows} rows wait. Try again later."
        wait = max(self.rows * self.pace, request.arrived - self._moved)
        most = min(_LONGEST_WAIT, _PART_OF_DEADLINE * (request.deadline - request.arrived))
        if wait <= most or not self.present:
            return ""
        return (
            f"The queue of {self.model} is full: this call would wait for about {wait:.2g} s, and "
            f"may for {most:.2g} s. Try again later."
        )

    def give_up(self, request: Request) -> bool:
        """Drop the parts of a request that still wait; False if there are none."""
        if request.done or request.taken >= (request.rows or 1):
            return False
        request.done = True
        self._count(request, -request.waits)
        if not request.taken:
            request.arrays = None  # Its place in the waiting is left later, its memory now.
        return True

    def put_back(self, batch: Batch) -> None:
        """Its model is not in memory after all: as if it had not been taken."""
        self.running -= 1
        for request, start, stop in reversed(batch.parts):
            if stop == request.rows:  # Else it has not left its queue.
                self._waiting[request.priority].setdefault(request.kind, deque()).appendleft(
                    request
                )
            request.taken = start
            self._count(request, (stop - start) or 1)

    def due(self, now: float) -> float | None:
        """When the next batch should begin: `now` or before it is ready, None if nothing waits."""
        if not self.rows or not self.present or (self.exclusive and self.running):
            return None
        head = self._head()
        if head is None:
            return None
        wait = self.options.wait
        if not wait or head.kind.alone or head.taken or self.rows >= self.limit:
            return head.arrived
        if self.options.target is not None:
            wait = min(wait, max(0.0, self.options.target - 2 * self.seconds))
        # Waiting must not cost the first one its deadline.
        return min(head.arrived + wait, head.deadline - 2 * self.seconds)

    def take(self, now: float) -> tuple[Batch | None, list[Request]]:
        """The next batch, and the requests whose deadline has passed."""
        expired: list[Request] = []
        while (head := self._head()) is not None and head.deadline <= now and not head.taken:
            self._pop(head, expired)
        if head is None:
            return None, expired
        kind = head.kind
        waited = self.rows
        if waited > self.activity.waiting:
            self.activity.waiting = waited
        if kind.alone and not head.taken:
            self._leave(head)
            batch = Batch(self, kind, [Part(head, 0, head.rows)], head.rows, head.nbytes)
        elif head.taken or self._too_long(head, now):
            batch = self._split(head, self._piece(head, now))
        else:
            batch = self._merge(kind, now, expired)
        self.running += 1
        self.batches += 1
        self.requests += len(batch.parts)
        self._measure(waited - self.rows, now)
        return batch, expired

    def finish(self, batch: Batch, seconds: float, oldest: float) -> None:
        """The batch is done; `oldest` is how long its first request took from its arrival."""
        self.running -= 1
        rows = max(1, batch.rows)
        weight = 0.2 if self.seconds else 1.0
        self.seconds += weight * (seconds - self.seconds)
        self.per_row += weight * (seconds / rows - self.per_row)
        if self.options.target is not None:
            self._adapt(batch.rows, oldest, self.options.target)

    def unbind(self) -> None:
        """Know nothing of the model that was in memory: clients know its kinds for long."""
        for kind in self.kinds.values():
            kind.bound = kind.error = None

    def drain(self) -> list[Request]:
        """Take out all that wait."""
        found = [request for request in self if not request.done]
        self._waiting.clear()
        self._order.clear()
        self.rows = 0
        return found

    def __iter__(self) -> Iterator[Request]:
        for priority in self._order:
            for waiting in self._waiting[priority].values():
                yield from waiting

    def _head(self) -> Request | None:
        """The request that decides about the next batch."""
        for priority in self._order:
            by_kind = self._waiting[priority]
            first: Request | None = None
            for waiting in list(by_kind.values()):
                while waiting and waiting[0].done:
                    self._shift(waiting[0])
                if waiting and (first is None or waiting[0].arrived < first.arrived):
                    first = waiting[0]
            if first is not None:
                return first
        return None

    def _too_long(self, head: Request, now: float) -> bool:
        """Whether it is split: if it is known that it can be, or if it would fail as it is."""
        need = head.kind.need
        if head.kind.even or self.options.fixed:
            return self._piece(head, now) < head.rows
        return need.bounded and head.rows > 1 and need.refusal(head.nbytes, now) is not None

    def _piece(self, head: Request, now: float) -> int:
        """Rows above which a request is split. Without a limit of the owner's that is a matter
        of time, as others wait for it, and of memory."""
        rows = self.options.largest
        if not self.options.fixed:
            rows = max(rows, int(_PIECE / self.per_row) if self.per_row else _FIRST_PIECE)
        most = head.kind.need.piece(now)
        if rows * head.nbytes > most * head.rows:
            rows = max(1, int(most * head.rows / head.nbytes))
        return rows

    def _split(self, head: Request, piece: int) -> Batch:
        start = head.taken
        stop = min(head.rows, start + piece)
        head.taken = stop
        # Something of it waits until its last piece is taken.
        left = 0 if stop == head.rows else max(1, head.waits - (stop - start))
        self._count(head, left - head.waits)
        if stop == head.rows:
            self._shift(head)
        part = Part(head, start, stop)
        return Batch(self, head.kind, [part], stop - start, part.nbytes)

    def _merge(self, kind: BatchKind, now: float, expired: list[Request]) -> Batch:
        parts: list[Part] = []
        rows = nbytes = 0
        limit = self.limit
        most = min(_MERGED, kind.need.piece(now))
        for priority in self._order:
            waiting = self._waiting[priority].get(kind)
            while waiting:
                request = waiting[0]
                if request.done:
                    self._shift(request)
                    continue
                if request.deadline <= now and not request.taken:
                    self._pop(request, expired)
                    continue
                rows += request.rows
                nbytes += request.nbytes
                if parts and (rows > limit or nbytes > most):
                    rows -= request.rows
                    nbytes -= request.nbytes
                    return Batch(self, kind, parts, rows, nbytes)
                self._leave(request)
                parts.append(Part(request, 0, request.rows))
        return Batch(self, kind, parts, rows, nbytes)

    def _shift(self, request: Request) -> None:
        """Take out the first of its kind; a kind without requests has no entry."""
        by_kind = self._waiting[request.priority]
        waiting = by_kind[request.kind]
        waiting.popleft()
        if not waiting:
            del by_kind[request.kind]

    def _leave(self, request: Request) -> None:
        self._shift(request)
        self._count(request, -request.waits)
        request.taken = request.rows or 1

    def _count(self, request: Request, rows: int) -> None:
        """Change how many of its rows wait."""
        rows = max(rows, -request.waits)
        request.waits += rows
        self.rows += rows

    def _pop(self, request: Request, into: list[Request]) -> None:
        """Take out the first of its kind, which has expired."""
        self._leave(request)
        request.done = True
        into.append(request)

    def _measure(self, left: int, now: float) -> None:
        """So many rows have left the queue now; their pace is known if they have waited since the
        batch before."""
        if self._behind and left > 0:
            self._paces.append((now - self._moved) / left)
            if len(self._paces) == _SAMPLES:
                self.pace = sorted(self._paces)[_SAMPLES // 2]
        self._moved, self._behind = now, self.rows > 0

    def _adapt(self, rows: int, oldest: float, target: float) -> None:
        """Smaller batches at once when the target is missed, larger ones little by little."""
        if oldest > target:
            self.limit = max(1, min(self.limit, rows) * 3 // 4)
        elif rows >= self.limit and oldest < 0.8 * target:
            self.limit = min(self.options.largest, self.limit + 1)
