"""The program of an engine: it holds models, and runs the batches of everybody's requests.

    client ──packets──▶ watcher ──▶ queues ──▶ batch ──▶ TensorFlow ──▶ answers ──▶ client
                                      ▲
                                    loader

Threads take turns at being the watcher: whoever has nothing to run watches the sockets, and runs
the batch it has read itself, while the next one takes over the watch. So no request waits for a
thread to wake up. If the batch is brief, there is no need to take over. A few more, the loader's,
bring models into memory.

Started as a job of the broker, with two arguments: where to listen, and how many batches may run
at a time (0: one for each processor, up to four). Descriptor 3 is the channel of its owner, with
whom it ends.
"""

import contextlib
import os
import resource
import select
import shutil
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from sublet.channel import peers, records
from sublet.channel.codes import Code
from sublet.channel.packets import new_buffer
from sublet.channel.peers import SHORT, Spare
from sublet.channel.records import Malformed, Record
from sublet.errors import ServingError
from sublet.inside.warm_start.ending import leave

from . import compute_threads, control_requests, files_of, flight_recorder, start_runtime
from .batch_runner import BatchRunner
from .client_channels import Client, taken
from .failures import not_found
from .fair_queue import RunningBatch
from .loader_threads import Loader
from .model_store import ModelStore
from .profiling import Profiler
from .scheduler import Make, Scheduler
from .signatures import Unloaded

OWNER = 3  # The descriptor of the owner's channel.
_IN = select.EPOLLIN | select.EPOLLRDHUP
_NEVER = float("inf")
_MOST_SLOTS = 4
"""Each batch uses all processors where it can; a few at a time fill the gaps between them."""
_SWITCH = 0.001
"""Seconds after which a thread that computes in Python lets another run: five times sooner than
usual, as each of ours has little to do and others wait for it."""


def main() -> None:
    """Serve until the owner is gone."""
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        # Before TensorFlow's threads start, which inherit it: a batch wakes them thousands of times
        # per second, and each time they would push aside whoever reads or answers requests.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    start_runtime.start_runtime()
    slots = _slots(int(sys.argv[2]))
    compute_threads.begin(slots)
    serve(sys.argv[1], slots, partial(ModelStore, cache=files_of(sys.argv[1])))


def serve(path: str, slots: int, make: Make) -> None:
    """Serve until the owner is gone, with the store that `make` makes."""
    sys.setswitchinterval(_SWITCH)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    owner = socket.socket(fileno=OWNER)
    owner.set_inheritable(False)
    Engine(path, owner, _slots(slots), make).serve_forever()


def _slots(asked: int) -> int:
    return asked or min(_MOST_SLOTS, len(os.sched_getaffinity(0)))


class Engine:
    """The sockets, and the threads around them."""

    def __init__(self, path: str, owner: socket.socket, slots: int, make: Make) -> None:
        self.scheduler: Scheduler = Scheduler(slots, make, self._tell_owner)
        self.runner = BatchRunner(self.scheduler, self.flush)
        self.loader: Loader = Loader(self.scheduler, self.runner, self._wake)
        self.profiler: Profiler = Profiler(files_of(path))
        self._path = path
        self._slots = slots
        self._watching = threading.Lock()  # Held by the thread that watches the sockets.
        self._until = _NEVER  # When the watcher wakes by itself.
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._spare = Spare()
        self._clients: dict[int, Client] = {}
        self._buffer = new_buffer()
        """All clients are read by whoever watches, so one will do for any number of them."""
        self._owner = Client(owner, True, self._buffer)
        self._recorder = flight_recorder.blank()
        """What each thread runs; the owner reads it when this process has ended."""

    def serve_forever(self) -> None:
        """Listen for clients; never returns."""
        self._epoll.register(self._bell, select.EPOLLIN)
        self._listener.setblocking(False)
        # Nobody finds it before it listens.
        self._listener.bind(f"{self._path}.part")
        self._listener.listen(128)
        os.rename(f"{self._path}.part", self._path)
        self._epoll.register(self._listener, select.EPOLLIN)
        self._add(self._owner)
        self.loader.start()
        for number in range(self._slots):
            name = f"runner-{number}"
            threading.Thread(target=self._work, args=(number,), name=name, daemon=True).start()
        self._work(self._slots)

    def flush(self, clients: Iterable[Client]) -> None:
        """Send clients what waits for them; one that does not read gets the rest later."""
        for client in clients:
            if not client.flush():
                with contextlib.suppress(OSError, ValueError):  # It was closed meanwhile.
                    self._epoll.modify(client.fileno(), _IN | select.EPOLLOUT)

    def _work(self, number: int) -> None:
        """The loop of each thread: run batches that are due, else wait for requests."""
        slot = min(number, flight_recorder.SLOTS - 1)
        while True:
            try:
                due = self._run_batch(self._take() or self._watch_for_one(slot), slot)
                if due is not None and due < self._until:
                    self._wake()
            except Exception:
                # A bug of ours: who waits for this batch has no answer, but all others do.
                traceback.print_exc(file=sys.stderr)

    def _watch_for_one(self, slot: int) -> RunningBatch:
        """Watch until there is a batch that takes its time. A brief one is run without giving up
        the watch: others would wake up for nothing, and what comes meanwhile is a larger batch.
        But not where several models are asked: their batches run side by side."""
        with self._watching:
            while True:
                run = self._take()
                if run is None:
                    self._watch()
                elif run.brief:
                    self._run_batch(run, slot)
                else:
                    return run

    def _take(self) -> RunningBatch | None:
        run, expired = self.scheduler.take()
        if expired:
            late = "The deadline had passed before the model could run."
            self.runner.refuse(expired, ServingError(late, Code.DEADLINE_EXCEEDED))
        return run

    def _run_batch(self, run: RunningBatch, slot: int) -> float | None:
        """Run a batch; when the next one will be due."""
        queue = run.batch.queue
        loaded = self.scheduler.store.use(queue.model, queue.version)
        try:
            if loaded is None:
                raise Unloaded
            self._recorder[slot] = queue.number
            try:
                return self.runner.run_batch(run, loaded)
            finally:
                self._recorder[slot] = 0
        except Unloaded:
            lost = self.scheduler.put_back(run)
            self.runner.refuse(lost, not_found(queue.model, queue.version))
            self.loader.want(queue.model, queue.version)
            return None

    def _watch(self) -> None:
        """Wait for something to come in, and take it in."""
        # Whoever is done from here on wakes us: what comes of it may be missing in the answer.
        self._until = _NEVER
        now = time.monotonic()
        due = self.scheduler.next_due(now)
        if due is not None:
            self._until = due
        heard = self._epoll.poll(None if due is None else max(0.0, due - now))
        for number, events in heard:
            if number == self._bell:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._bell)
            elif number == self._listener.fileno():
                self._accept()
            elif (client := self._clients.get(number)) is not None:
                if events & select.EPOLLOUT and client.flush():
                    self._epoll.modify(number, _IN)
                if events & ~select.EPOLLOUT:
                    self._read(client)

    def _wake(self) -> None:
        os.eventfd_write(self._bell, 1)

    def _tell_owner(self, event: str, model: str, version: int, more: dict[str, Any]) -> None:
        """Tell the owner what becomes of a model; called by the store."""
        if event == "loading":
            self.scheduler.begins_to_load(model, version)
        elif event in ("loaded", "failed") and self.scheduler.has_loaded(model, version):
            self._wake()
        elif event == "unloaded" and self.scheduler.departed(model, version):
            self.loader.want(model, version)
        self._owner.send_event({"event": event, "model": model, "version": version, **more})
        self.flush([self._owner])

    def _accept(self) -> None:
        """Accept clients, of this user only, whatever the socket's permissions say."""
        try:
            while True:
                sock, _ = self._listener.accept()
                if peers.is_ours(sock):
                    self._add(Client(sock, buffer=self._buffer))
                else:
                    sock.close()
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in SHORT:
                self._spare.turn_away(self._listener)

    def _add(self, client: Client) -> None:
        self._clients[client.fileno()] = client
        self._epoll.register(client.fileno(), _IN)

    def _lose(self, client: Client) -> None:
        """It is gone, or makes no sense; nobody waits for its calls."""
        if client.owner:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            shutil.rmtree(files_of(self._path), ignore_errors=True)
            leave(0)
        del self._clients[client.fileno()]
        with contextlib.suppress(OSError, ValueError):
            self._epoll.unregister(client.fileno())
        client.dead = True
        self.scheduler.give_up(list(client.calls.values()))
        client.close()

    def _read(self, client: Client) -> None:
        """Take in one packet of a client: who sends many does not keep us from the others."""
        try:
            packet = client.inbox.receive_nowait()
            if packet is None:
                return
            beside = iter(packet.descriptors)
            now = time.monotonic()
            try:
                for record in records.read(packet.data):
                    self._hear(client, record, packet.data, beside, now)
            finally:
                for number in beside:
                    os.close(number)
        except (EOFError, Malformed):
            self._lose(client)
            return
        except Exception:
            traceback.print_exc(file=sys.stderr)
            self._lose(client)
            return
        if client.outbox.waiting:
            self.flush([client])

    def _hear(
        self, client: Client, record: Record, data: Any, beside: Iterator[int], now: float
    ) -> None:
        kind = record.kind
        if kind == records.CALL:
            self._call(client, record, data, now)
        elif kind == records.OPEN:
            client.open(record, data)
        elif kind == records.SEGMENT:
            client.attach(record, data, beside)
        elif kind == records.DROP:
            client.detach(record)
        elif kind == records.TAKEN:
            client.has_taken(record.call)
        elif kind == records.CANCEL:
            self._cancel(client, record.call)
        elif kind == records.RECORDER:
            self._attach_recorder(client, beside)
        elif kind == records.ASK:
            control_requests.answer(self, client, record.call, client.body(record, data))
        else:
            raise Malformed(f"a client does not send records of kind {kind}")

    def _call(self, client: Client, record: Record, data: bytes, now: float) -> None:
        route = client.routes.get(record.route)
        if route is None or record.call in client.calls:
            raise Malformed("a call on no route, or one that is there already")
        heads = record.at + records.DEADLINE.size
        at = heads + record.more
        if at > record.end:
            raise Malformed("a call is cut off")
        (until,) = records.DEADLINE.unpack_from(data, record.at)
        form = route.form(data[heads:at])
        arrays = client.arrays(form, data, at, record.end)
        deadline = until * 1e-9 if until else _NEVER
        result = self.scheduler.put(
            client, route, record.call, form, arrays, now, deadline, record.priority
        )
        if isinstance(result, ServingError):
            client.fail(record.call, result)
        elif result is not None:
            self.loader.want(result.model, result.version)

    def _attach_recorder(self, client: Client, beside: Iterator[int]) -> None:
        if not client.owner:
            raise Malformed("only the owner has a flight recorder")
        with taken(beside) as memory:
            self._recorder = flight_recorder.attach(memory)

    def _cancel(self, client: Client, call: int) -> None:
        request = client.calls.get(call)
        if request is None:
            return
        if self.scheduler.give_up([request]):
            del client.calls[call]
            client.fail(call, ServingError("The call was cancelled.", Code.CANCELLED))
        else:
            self.scheduler.abandon(request)


if __name__ == "__main__":
    main()
