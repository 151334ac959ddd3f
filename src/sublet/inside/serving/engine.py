"""The program of an engine: it holds models, and runs the batches of everybody's requests.

    client ──packets──▶ watcher ──▶ queues ──▶ turn ──▶ batch ──▶ TensorFlow ──▶ answers ──▶ client
                                       ▲
                                     loader

Threads take turns at being the watcher: whoever has nothing to run watches the sockets, and runs
the batch it has read itself, while the next one takes over the watch. So no request waits for a
thread to wake up. One thread more, the loader, brings models into memory; requests wait for it in
their queue, and those of other models do not.

Started as a job of the broker, with two arguments: where to listen, and how many batches may run
at a time (0: as many as fit the device). Descriptor 3 is the channel of its owner, with which it
lives and ends.
"""

from __future__ import annotations

import contextlib
import os
import queue
import resource
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from sublet.channel import records
from sublet.channel.codes import Code
from sublet.channel.records import Malformed, Record
from sublet.errors import ServingError
from sublet.inside.calls import leave

from . import batches, questions
from .answers import Answers
from .clients import Client, Form, Lane
from .models import Loaded, Store
from .options import Options
from .queues import Batch, Kind, Queue, Request
from .schedule import Run, Schedule

OWNER = 3
"""The descriptor of the owner's channel."""
_IN = select.EPOLLIN | select.EPOLLRDHUP
_IN_OUT = _IN | select.EPOLLOUT


def main() -> None:
    """Serve until the owner is gone."""
    path, slots = sys.argv[1], int(sys.argv[2])
    sys.setswitchinterval(0.001)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    owner = socket.socket(fileno=OWNER)
    owner.set_inheritable(False)
    Engine(path, owner, slots or len(os.sched_getaffinity(0))).run()


class Engine:
    """All of it: sockets, queues, models."""

    def __init__(self, path: str, owner: socket.socket, slots: int) -> None:
        self.store = Store()
        self._path = path
        self._slots = slots
        self._schedule = Schedule(slots)
        self._lock = threading.Lock()
        """Around the schedule, and what says which models are loading."""
        self._watch = threading.Lock()
        """Held by the thread that watches the sockets."""
        self._until: float | None = None
        """When the watcher wakes by itself."""
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._clients: dict[int, Client] = {}
        self._owner = Client(owner, owner=True)
        self._loads: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._loading: set[tuple[str, int]] = set()

    def run(self) -> None:
        """Listen, and never return."""
        self._listener.setblocking(False)
        # Nobody connects to a half-made one.
        part = f"{self._path}.part"
        self._listener.bind(part)
        self._listener.listen(128)
        os.rename(part, self._path)
        self._epoll.register(self._listener, select.EPOLLIN)
        self._add(self._owner)
        threading.Thread(target=self._load, name="loader", daemon=True).start()
        for number in range(self._slots):
            threading.Thread(target=self._serve, name=f"runner-{number}", daemon=True).start()
        self._serve()

    # Watching.

    def _serve(self) -> None:
        """What each thread does: run what is due; watch, if nothing is."""
        while True:
            run = self._take()
            if run is None:
                with self._watch:
                    run = self._take()
                    if run is None:
                        self._look()
                        run = self._take()
            if run is not None:
                self._run(run)

    def _look(self) -> None:
        """Wait for something to come in, and take it in."""
        with self._lock:
            now = time.monotonic()
            due = self._schedule.next_due(now)
            self._until = due
        for number, events in self._epoll.poll(None if due is None else max(0.0, due - now)):
            if number == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif number == self._listener.fileno():
                self._accept()
            elif (client := self._clients.get(number)) is not None:
                if events & select.EPOLLOUT and client.flush():
                    self._epoll.modify(number, _IN)
                if events & ~select.EPOLLOUT:
                    self._read(client)

    def _wake_watcher(self) -> None:
        os.eventfd_write(self._wake, 1)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            while True:
                self._add(Client(self._listener.accept()[0]))

    def _add(self, client: Client) -> None:
        self._clients[client.fileno()] = client
        self._epoll.register(client.fileno(), _IN)

    def _read(self, client: Client) -> None:
        """Take in all that a client has sent; a client that makes no sense is hung up on."""
        try:
            while (packet := client.inbox.receive_nowait()) is not None:
                beside = iter(packet.descriptors)
                try:
                    for record in records.read(packet.data):
                        self._hear(client, record, packet.data, beside)  # type: ignore[arg-type]
                finally:
                    for number in beside:
                        os.close(number)
        except (EOFError, Malformed):
            self._lose(client)
            return
        if client.outbox.waiting:
            self.flush([client])

    def flush(self, clients: list[Client]) -> None:
        for client in clients:
            if not client.flush():
                with contextlib.suppress(OSError, ValueError):
                    self._epoll.modify(client.fileno(), _IN_OUT)

    def _lose(self, client: Client) -> None:
        """It is gone; nobody waits for its calls."""
        if client.owner:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            leave(0)
        self._clients.pop(client.fileno(), None)
        with contextlib.suppress(OSError, ValueError):
            self._epoll.unregister(client.fileno())
        with self._lock:
            for request in list(client.calls.values()):
                if request.lane.queue is not None:
                    request.lane.queue.give_up(request)
                request.done = True
            client.calls.clear()
        client.close()

    # Hearing.

    def _hear(self, client: Client, record: Record, data: bytes, beside: Any) -> None:
        kind = record.kind
        if kind == records.CALL:
            self._call(client, record, data)
        elif kind == records.OPEN:
            client.open(record, data)
        elif kind == records.SEGMENT:
            client.attach(record, data, beside)
        elif kind == records.DROP:
            client.detach(record)
        elif kind == records.CANCEL:
            self._cancel(client, record.call)
        elif kind == records.ASK:
            questions.answer(self, client, record.call, client.body(record, data))
        else:
            raise Malformed(f"a client does not send records of kind {kind}")

    def _call(self, client: Client, record: Record, data: bytes) -> None:
        lane = client.lanes.get(record.lane)
        if lane is None or record.call in client.calls:
            raise Malformed("a call on no lane, or one that is there already")
        at = record.at + records.DEADLINE.size
        if at + record.more > record.end:
            raise Malformed("a call is cut off")
        (until,) = records.DEADLINE.unpack_from(data, record.at)
        form = lane.form(data[at : at + record.more])
        arrays = client.arrays(form, data, at + record.more, record.end)
        error: ServingError | None
        with self._lock:
            found = lane.queue
            if (
                found is None
                or self._schedule.queues.get((found.model, found.version)) is not found
                or (found.retired and lane.version is None)
            ):
                found = self._find(lane)
            if found is None:
                error = not_found(lane.model, lane.version)
            else:
                kind = lane.kinds.get(form.key)
                if kind is None or kind.bound is None:
                    kind = self._kind(lane, found, form)
                request = Request(
                    kind,
                    form.rows,
                    time.monotonic(),
                    until * 1e-9 if until else _NEVER,
                    record.priority,
                    form.nbytes,
                    arrays,
                    client,
                    record.call,
                    lane,
                )
                error = kind.error or self._schedule.put(found, request)
                if error is None:
                    client.calls[record.call] = request
                    if not found.present:
                        self._want(found)
        if error is not None:
            client.fail(record.call, error.code, error.message)

    def _find(self, lane: Lane) -> Queue | None:
        """The queue that a lane leads to."""
        version = lane.version
        if version is None:
            version = self._newest(lane.model)
        lane.queue = self._schedule.queues.get((lane.model, version))
        lane.kinds.clear()
        return lane.queue

    def _newest(self, model: str) -> int:
        """The version for calls that name none, or -1; with the lock held.

        One that was never loaded is not tried on them as long as there is another.
        """
        known = [one for one in self._schedule.queues.values() if one.model == model]
        best = max(known, key=lambda one: (not one.retired, one.proven, one.version), default=None)
        return -1 if best is None else best.version

    def _kind(self, lane: Lane, found: Queue, form: Form) -> Kind:
        tails: Any = form.key
        lone = any(tail is None for _, tail, _ in tails)
        if found.options.pad_inputs and not lone:
            tails = tuple((dtype, None, rank) for dtype, _, rank in tails)
        key = lane.signature, lane.inputs, tails
        kind = found.kinds.get(key)
        if kind is None:
            kind = found.kinds[key] = Kind(lane.signature, (lane.inputs, tails, lone))
            kind.alone = lone or found.options.alone
            loaded = self.store.use(found.model, found.version) if found.present else None
            if loaded is not None:
                self._bind(kind, found, loaded)
        lane.kinds[form.key] = kind
        return kind

    def _bind(self, kind: Kind, found: Queue, loaded: Loaded) -> None:
        """Check a kind of requests against the model that is in memory now."""
        bound = loaded.signatures.get(kind.signature)
        names, tails, lone = kind.key
        kind.bound = bound
        if bound is None:
            kind.error = ServingError(
                f'Serving signature key "{kind.signature}" not found.', Code.FAILED_PRECONDITION
            )
            return
        kind.error = batches.check(kind, bound, names, tails)
        kind.alone = lone or found.options.alone or not bound.batchable
        found.exclusive = found.exclusive or bound.stateful

    def _cancel(self, client: Client, call: int) -> None:
        request = client.calls.get(call)
        if request is None:
            return
        with self._lock:
            given_up = request.lane.queue.give_up(request)
        if given_up:
            del client.calls[call]
            client.fail(call, Code.CANCELLED, "The call was cancelled.")

    # Running.

    def _take(self) -> Run | None:
        with self._lock:
            run, expired = self._schedule.take(time.monotonic())
        if expired:
            self._refuse(expired, late())
        return run

    def _run(self, run: Run) -> None:
        batch = run.batch
        waiting = batch.queue
        loaded = self.store.use(waiting.model, waiting.version)
        if loaded is None:
            with self._lock:
                self._schedule.put_back(run)
                self._want(waiting)
            return
        began = time.monotonic()
        seconds = 0.0
        try:
            seconds = self._compute(batch, loaded, began)
        finally:
            ended = time.monotonic()
            with self._lock:
                oldest = ended - min(part.request.arrived for part in batch.parts)
                self._schedule.finish(run, seconds or ended - began, oldest)
                due = self._schedule.next_due(ended)
                late_watcher = due is not None and (self._until is None or due < self._until)
            if late_watcher:
                self._wake_watcher()

    def _compute(self, batch: Batch, loaded: Loaded, began: float) -> float:
        """Run a batch, and send its answers; how long TensorFlow took."""
        kind, options = batch.kind, batch.queue.options
        if kind.bound is None or kind.bound is not loaded.signatures.get(kind.signature):
            with self._lock:
                self._bind(kind, batch.queue, loaded)
            if kind.alone and len(batch.parts) > 1:
                return self._one_by_one(batch, loaded, began)
        if kind.error is not None:
            self._refuse([part.request for part in batch.parts], kind.error)
            return 0.0
        bound = kind.bound
        for part in batch.parts:
            if not part.start:
                part.request.started = began
        try:
            inputs = batches.gather(batch, options)
            size = len(inputs[0]) if not kind.alone else batch.rows
            outputs = list(bound.call(dict(zip(kind.key[0], inputs, strict=True))).values())
            seconds = time.monotonic() - began
            pieces = batches.scatter(outputs, batch, size)
        except Exception as error:
            if len(batch.parts) > 1:
                # One of them may be at fault; it fails alone.
                return self._one_by_one(batch, loaded, began)
            self._refuse([batch.parts[0].request], as_answer(error))
            return time.monotonic() - began
        answers = Answers(tuple(bound.outputs))
        for part, piece in zip(batch.parts, pieces, strict=True):
            request = part.request
            if request.done or request.client.dead:
                continue
            if part.stop - part.start < request.rows:
                whole = _assemble(part, piece)
                if whole is None:
                    continue
                piece = whole
            answers.put(request, piece, seconds, size)
        self.flush(answers.send())
        return seconds

    def _one_by_one(self, batch: Batch, loaded: Loaded, began: float) -> float:
        total = 0.0
        for part in batch.parts:
            rows = part.stop - part.start
            total += self._compute(Batch(batch.queue, batch.kind, [part], rows), loaded, began)
        return total

    def _refuse(self, requests: list[Request], error: ServingError) -> None:
        """Answer these with an error."""
        answers = Answers(())
        for request in requests:
            if not request.client.dead and request.client.calls.get(request.call) is request:
                answers.fail(request, error)
        self.flush(answers.send())

    # Loading.

    def _want(self, waiting: Queue) -> None:
        """Have a model loaded; with the lock held."""
        key = waiting.model, waiting.version
        if key not in self._loading:
            self._loading.add(key)
            self._loads.put(partial(self._bring, *key))

    def _load(self) -> None:
        """The loader thread."""
        while True:
            work = self._loads.get()
            try:
                work()
            except Exception as error:
                print(f"sublet: the loader failed: {error!r}", file=sys.stderr, flush=True)

    def _bring(self, model: str, version: int) -> Loaded | ServingError:
        """Have a model in memory, and its requests go on, or fail."""
        self._tell({"event": "loading", "model": model, "version": version})
        began = time.monotonic()
        result: Loaded | ServingError
        try:
            result = self.store.load(model, version)
        except Exception as error:
            result = as_answer(error)
        seconds = time.monotonic() - began
        lost: list[Request] = []
        with self._lock:
            self._loading.discard((model, version))
            waiting = self._schedule.queues.get((model, version))
            if waiting is not None:
                if isinstance(result, ServingError):
                    lost = waiting.drain()
                else:
                    waiting.present = waiting.proven = True
        told = {"event": "loaded", "model": model, "version": version, "seconds": seconds}
        if isinstance(result, ServingError):
            self._refuse(lost, result)
            told |= {"event": "failed", "code": int(result.code), "error": result.message}
        self._tell(told)
        self._wake_watcher()
        return result

    def _tell(self, told: dict[str, Any]) -> None:
        self._owner.tell(told)
        self.flush([self._owner])

    # Questions.

    def later(self, work: Callable[[], None]) -> None:
        """Have the loader do this, after what it has."""
        self._loads.put(work)

    def add(self, model: str, version: int, path: str, options: dict[str, Any]) -> dict[str, Any]:
        """Make a version known; its first request loads it."""
        read = Options.read(options)
        self.store.add(model, version, path, options)
        with self._lock:
            self._schedule.add(model, version, read)
        return {}

    def resolve(self, model: str, version: int | None) -> int:
        """The version that is meant; the newest, if none is named."""
        with self._lock:
            number = self._newest(model) if version is None else version
            if (model, number) not in self._schedule.queues:
                raise not_found(model, version)
        return number

    def bring(self, model: str, version: int) -> Loaded:
        """The model, in memory; by the loader."""
        loaded = self.store.use(model, version)
        if loaded is not None:
            return loaded
        result = self._bring(model, version)
        if isinstance(result, ServingError):
            raise result
        return result

    def unload(self, model: str, version: int) -> dict[str, Any]:
        """Give its memory back; the next request loads it again."""
        with self._lock:
            found = self._schedule.queues.get((model, version))
            if found is None:
                raise not_found(model, version)
            found.present = False
        self.store.unload(model, version)
        return {}

    def retire(self, model: str, version: int) -> dict[str, Any]:
        """It will be forgotten: calls that name no version go elsewhere from now on."""
        with self._lock:
            if (found := self._schedule.queues.get((model, version))) is not None:
                found.retired = True
        return {}

    def forget(self, model: str, version: int) -> dict[str, Any]:
        """Serve it no more; requests that wait for it fail."""
        with self._lock:
            lost = self._schedule.remove(model, version)
        self._refuse(lost, not_found(model, version))
        self.store.forget(model, version)
        return {}

    def models(self) -> list[dict[str, Any]]:
        """What is known of each version."""
        with self._lock:
            return [
                {
                    "model": found.model,
                    "version": found.version,
                    "loaded": found.present,
                    "waiting": found.rows,
                    "running": found.running,
                    "requests": found.requests,
                    "batches": found.batches,
                }
                for found in self._schedule.queues.values()
            ]


_NEVER = float("inf")


def _assemble(part: Any, piece: list[Any]) -> list[Any] | None:
    """A part of a split request is done: all of its outputs, once it was the last."""
    import numpy as np

    request = part.request
    if request.results is None:
        request.results = []
    request.results.append((part.start, piece))
    request.unanswered -= part.stop - part.start
    if request.unanswered:
        return None
    pieces = [piece for _, piece in sorted(request.results, key=lambda one: one[0])]
    return [np.concatenate(column) for column in zip(*pieces, strict=True)]


def not_found(model: str, version: int | None) -> ServingError:
    wanted = f"Latest({model})" if version is None else f"Specific({model}, {version})"
    return ServingError(f"Servable not found for request: {wanted}", Code.NOT_FOUND)


def late() -> ServingError:
    return ServingError(
        "The deadline had passed before the model could run.", Code.DEADLINE_EXCEEDED
    )


def as_answer(error: Exception) -> ServingError:
    """What a client is told of an error."""
    if isinstance(error, ServingError):
        return error
    code = getattr(error, "error_code", None)
    if isinstance(code, int) and 0 < code <= 16:
        return ServingError(str(getattr(error, "message", error)), code)
    if isinstance(error, (ValueError, TypeError)):
        return ServingError(str(error), Code.INVALID_ARGUMENT)
    return ServingError(f"{type(error).__name__}: {error}", Code.INTERNAL)


if __name__ == "__main__":
    main()
