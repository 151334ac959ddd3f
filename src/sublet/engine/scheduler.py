"""What the threads of an engine share: the queues and the models, under one lock.

Finds the queue of a call, and checks that it fits the model. Runs nothing, sends nothing.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from sublet.channel.codes import Code
from sublet.channel.tensors import Array
from sublet.errors import ServingError
from sublet.inside import current_lease

from . import batches, flight_recorder
from .client_channels import Client, Form, Route
from .failures import not_found
from .fair_queue import BatchProgress, FairQueue, RunningBatch
from .model_entries import Loaded
from .model_options import Options
from .model_queue import ModelQueue
from .model_store import ModelStore
from .requests import BatchKind, Part, Request

OnEvent = Callable[[str, str, int, dict[str, Any]], None]
Make = Callable[[Callable[[str, int], bool], OnEvent], ModelStore]
"""Makes the store; its arguments are those of `ModelStore`."""
_MOST_KINDS = 4096


class Scheduler:
    """Every method may be called by any thread."""

    def __init__(self, slots: int, make: Make, on_event: OnEvent) -> None:
        self.store = make(self._busy, on_event)
        self._queue = FairQueue(slots)
        held = current_lease.current()
        self._few_shapes = held is not None and held.on_gpu
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)  # Notified when a batch is done.

    def add(
        self,
        model: str,
        version: int,
        path: str,
        options: dict[str, Any],
        number: int = 0,
        suspect: float = 0.0,
    ) -> None:
        """Make a version known; its first request loads it. `number` is for the flight recorder,
        `suspect` for the queue."""
        read = Options.read(options, self._few_shapes)
        self.store.add(model, version, path, options)
        with self._lock:
            queue = self._queue.add(model, version, read)
            for need in queue.needs.values():
                need.forget()
            queue.number = number if 0 <= number <= flight_recorder.LARGEST else 0
            queue.suspect = suspect

    def resolve(self, model: str, version: int | None) -> int:
        """The version that is meant; the newest, if none is named. Raises ServingError."""
        with self._lock:
            found = self._find(model, version)
        if found is None:
            raise not_found(model, version)
        return found.version

    def put(
        self,
        client: Client,
        route: Route,
        call: int,
        form: Form,
        arrays: list[Array],
        now: float,
        deadline: float,
        priority: int,
    ) -> ServingError | ModelQueue | None:
        """Have a call wait; why it cannot, or the queue of a model that has to be loaded."""
        with self._lock:
            queue: ModelQueue | None = route.queue
            if queue is None or queue.removed or (queue.retired and route.version is None):
                queue = self._find(route.model, route.version)
                if queue is None:
                    # The route keeps its queue: earlier calls of it may still be there.
                    return not_found(route.model, route.version)
                route.queue = queue
                route.kinds.clear()
            kind = route.kinds.get(form.key)
            if kind is None or kind.bound is None:
                if len(route.kinds) >= _MOST_KINDS:
                    route.kinds.clear()
                kind = route.kinds[form.key] = self._kind(route, queue, form)
                if kind.error is not None:
                    return kind.error
            request = Request(
                kind, form.rows, now, deadline, priority, form.nbytes, arrays, client, call, route
            )
            refused = kind.error or self._queue.put(queue, request)
            if refused is not None:
                return refused
            client.calls[call] = request
            return None if queue.present else queue

    def take(self) -> tuple[RunningBatch | None, list[Request]]:
        """The next batch to run, and requests whose deadline has passed."""
        with self._lock:
            return self._queue.take(time.monotonic())

    def finish(self, run: RunningBatch, seconds: float) -> float | None:
        """A batch is done; when the next one will be due."""
        now = time.monotonic()
        with self._lock:
            oldest = now - min(part.request.arrived for part in run.batch.parts)
            self._queue.finish(run, seconds, oldest)
            run.batch.queue.activity.note(run.batch.parts, run.batch.rows, seconds, now)
            self._idle.notify_all()
            return self._queue.next_due(now)

    def quiet(self) -> int | None:
        """How many batches have begun, if only one runs: while this stays, what the memory shows
        is that one's."""
        with self._lock:
            return self._queue.begun if self._queue.running == 1 else None

    def next_due(self, now: float) -> float | None:
        """When a batch will be due by itself; None if only something new can make one so."""
        with self._lock:
            return self._queue.next_due(now)

    def put_back(self, run: RunningBatch) -> list[Request]:
        """The batch's model is not in memory after all; the requests that wait in vain if it is
        gone for good."""
        queue = run.batch.queue
        with self._lock:
            self._queue.put_back(run)
            self._idle.notify_all()
            return queue.drain() if queue.removed else []

    def give_up(self, requests: Iterable[Request]) -> list[Request]:
        """Nobody waits for these any more; those of them that no batch has."""
        with self._lock:
            return [one for one in requests if one.route.queue.give_up(one)]

    def abandon(self, request: Request) -> None:
        """Its caller has given it up while it runs: it comes to its end, unheard."""
        with self._lock:
            request.abandoned = True

    def progress(self) -> list[BatchProgress]:
        with self._lock:
            return self._queue.progress(time.monotonic())

    def assemble(self, part: Part, outputs: list[Array]) -> list[Array] | None:
        """A part of a split request is done; all of its outputs, once it was the last."""
        request = part.request
        with self._lock:
            if request.results is None:
                request.results = []
            request.results.append((part.start, outputs))
            request.answered += part.stop - part.start
            if request.answered < request.rows:
                return None
        return batches.assemble(request.results)

    def bind(self, kind: BatchKind, queue: ModelQueue, loaded: Loaded) -> None:
        """Check a kind of requests against the model that is in memory now."""
        with self._lock:
            self._bind(kind, queue, loaded)

    def begins_to_load(self, model: str, version: int) -> None:
        """From the thread that loads it; returns when it may."""
        with self._lock:
            queue = self._queue.queues.get((model, version))
            if queue is None:
                return
            # First this, so that no other suspect begins: the wait is for those that run.
            queue.loading = True
            while self._queue.another_suspect_runs(queue, now := time.monotonic()):
                self._idle.wait(queue.suspect - now)

    def has_loaded(self, model: str, version: int) -> bool:
        """It is not being loaded any more; whether others may have waited for that."""
        with self._lock:
            queue = self._queue.queues.get((model, version))
            if queue is None:
                return False
            queue.loading = False
            self._idle.notify_all()
            return bool(queue.suspect)

    def arrived(self, model: str, version: int) -> None:
        """The model is in memory now: its requests go on."""
        with self._lock:
            queue = self._queue.queues.get((model, version))
            if queue is not None:
                queue.present = queue.proven = True
                queue.unbind()

    def failed(self, model: str, version: int) -> list[Request]:
        """The model cannot be loaded; the requests that waited for it."""
        with self._lock:
            queue = self._queue.queues.get((model, version))
            return [] if queue is None else queue.drain()

    def departed(self, model: str, version: int) -> bool:
        """It is in memory no more; whether requests wait for it."""
        with self._lock:
            queue = self._queue.queues.get((model, version))
            if queue is None:
                return False
            queue.present = False
            queue.unbind()
            return bool(queue.rows)

    def absent(self) -> list[ModelQueue]:
        """Queues whose model has to be loaded."""
        with self._lock:
            return self._queue.absent()

    def retire(self, model: str, version: int) -> None:
        """It will be withdrawn: calls that name no version go to another one from now on."""
        with self._lock:
            if (queue := self._queue.queues.get((model, version))) is not None:
                queue.retired = True

    def withdraw(self, model: str, version: int, forget: bool) -> list[Request]:
        """Begin nothing of it any more, and wait until what runs is done; who waited in vain."""
        lost: list[Request] = []
        with self._lock:
            queue = self._queue.queues.get((model, version))
            if queue is None:
                raise not_found(model, version)
            if forget:
                lost = self._queue.remove(model, version)
            queue.present = False
            self._idle.wait_for(lambda: not queue.running)
            queue.unbind()
        return lost

    def models(self) -> list[dict[str, Any]]:
        """The state and the figures of each version."""
        stored = {(one["model"], one["version"]): one for one in self.store.statistics()}
        now = time.monotonic()
        with self._lock:
            return [
                {
                    **stored.get(key, {}),
                    "model": queue.model,
                    "version": queue.version,
                    "loaded": queue.present,
                    "waiting": queue.rows,
                    "running": queue.running,
                    "requests": queue.requests,
                    "batches": queue.batches,
                    "activity": queue.activity.report(),
                    "latest": one._asdict() if (one := queue.activity.latest(now)) else None,
                }
                for key, queue in self._queue.queues.items()
            ]

    def history(self, model: str, version: int) -> list[dict[str, Any]]:
        """What a version did in the last day. When: in seconds before now."""
        now = time.monotonic()
        with self._lock:
            queue = self._queue.queues.get((model, version))
            samples = [] if queue is None else queue.activity.history(now)
        return [one._replace(began=now - one.began)._asdict() for one in samples]

    def _busy(self, model: str, version: int) -> bool:
        """For the store: whether a model has requests."""
        with self._lock:
            queue = self._queue.queues.get((model, version))
            return queue is not None and bool(queue.rows or queue.running)

    def _find(self, model: str, version: int | None) -> ModelQueue | None:
        if version is not None:
            return self._queue.queues.get((model, version))
        # One that was never loaded is not tried on those who name none, if there is another. Of one
        # that is retired they are told that it is not here: another engine may have it.
        return max(
            (q for q in self._queue.queues.values() if q.model == model and not q.retired),
            key=lambda one: (one.proven, one.version),
            default=None,
        )

    def _kind(self, route: Route, queue: ModelQueue, form: Form) -> BatchKind:
        tails: Any = form.key
        lone = any(tail is None for _, tail, _ in tails)
        if queue.options.pad_inputs and not lone:
            tails = tuple((dtype, None, rank) for dtype, _, rank in tails)
        key = route.signature, route.inputs, tails
        kind = queue.kinds.get(key)
        if kind is None:
            if len(queue.kinds) >= _MOST_KINDS:
                queue.kinds.clear()
            kind = queue.kinds[key] = BatchKind(route.signature, route.inputs, tails, lone)
            kind.alone = lone or queue.options.alone
            kind.need = queue.needs.setdefault(route.signature, kind.need)
        if kind.bound is None and kind.error is None and queue.present:
            loaded = self.store.use(queue.model, queue.version)
            if loaded is not None:
                self._bind(kind, queue, loaded)
        return kind

    def _bind(self, kind: BatchKind, queue: ModelQueue, loaded: Loaded) -> None:
        bound = loaded.signatures.get(kind.signature)
        kind.bound, kind.error = bound, None
        if bound is None:
            kind.error = ServingError(
                f'Serving signature key "{kind.signature}" not found.', Code.FAILED_PRECONDITION
            )
            return
        kind.error = batches.check(kind, bound)
        kind.alone = kind.lone or queue.options.alone or not bound.batchable
        queue.exclusive = queue.exclusive or bound.stateful
