"""Which batch runs next, over the queues of all models. Pure; the scheduler holds a lock around it.

Start-time fair queueing. Each model has a tag, the virtual time at which its next batch starts:
when its last one was charged, or now, if it had nothing to do. The lowest tag goes next, and a
batch moves its model's tag by the seconds it took, divided by the model's weight. So a model that
is flooded gets what the others leave, and one with little to do waits for one batch, not for a
queue.
"""

from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

from sublet.errors import ServingError

from .model_options import Options
from .model_queue import ModelQueue
from .requests import Batch, Request

Share = tuple[str, float]


class FairShares:
    """The tags of all models. Only differences between tags mean anything."""

    def __init__(self) -> None:
        self._now = 0.0  # The tag of the batch that began last.
        self._tags: dict[str, float] = {}

    def choose(self, waiting: Iterable[tuple[str, float]]) -> str:
        """The model whose turn it is, given since when each model's batch is due."""
        return min(waiting, key=lambda one: (max(self._now, self._tags.get(one[0], 0.0)), one[1]))[
            0
        ]

    def ahead(self, model: str, other: str, seconds: float) -> bool:
        """Whether a model has had more time than the other, less these seconds of the other's."""
        return self._tags.get(model, 0.0) > self._tags.get(other, 0.0) - seconds

    def begin(self, model: str, seconds: float, weight: float) -> Share:
        """Note that its batch begins and about how long it will take; pass the result to `end`."""
        start = max(self._now, self._tags.get(model, 0.0))
        self._now = start
        self._tags[model] = start + seconds / weight
        return model, seconds

    def end(self, share: Share, seconds: float, weight: float) -> None:
        """Correct the charge of a batch by what it really took."""
        model, expected = share
        if model in self._tags:
            self._tags[model] += (seconds - expected) / weight

    def forget(self, model: str) -> None:
        self._tags.pop(model, None)


Key = tuple[str, int]

_LONG = 0.003
"""Seconds. While a longer batch runs, others would feel the wait: a slot is kept free for them."""
_FLOODED = 2
"""Batches: a model for which so many wait is flooded."""
_LATELY = 1.0
"""Seconds for which a model that was called keeps others from the last slot."""


class RunningBatch(NamedTuple):
    """A batch that is running now, its share and when it began."""

    batch: Batch
    share: Share
    brief: bool
    """Whether it is done in a moment, and nobody else's could be run meanwhile."""
    number: int
    began: float


class BatchProgress(NamedTuple):
    """How far a running batch is."""

    number: int
    model: str
    version: int
    seconds: float  # Since it began.
    expected: float
    """What it takes as a rule; 0 if none of this model was ever done."""
    wanted: bool  # Whether somebody still waits for it.
    holds_up: float
    """Seconds for which nothing else could begin because of it, though others have asked."""


class FairQueue:
    """The queues of all models; up to `slots` batches run at a time.

    A flooded model with long batches yields to one that has little to do: it does not take the last
    slot while another model is called, too. Nor does it start a batch beside the only one of a
    model that has had less. Two models that are both flooded run side by side, by share and
    priority.

    Of several suspects one runs at a time: if the engine ends again, it is clear which it was.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.running = 0
        self.begun = 0  # Batches, since the beginning.
        self.queues: dict[Key, ModelQueue] = {}
        self._waiting: dict[Key, ModelQueue] = {}  # Queues that are not empty.
        self._shares = FairShares()
        self._began = 0.0  # When the last batch began.
        self._runs: dict[int, RunningBatch] = {}  # The batches that run, by their numbers.
        self._asked: dict[str, float] = {}
        """The two models that were asked last, and when; the last one at the end."""

    def add(self, model: str, version: int, options: Options) -> ModelQueue:
        """A queue for this version; its options are replaced if there is one."""
        queue = self.queues.get((model, version))
        if queue is None:
            queue = self.queues[model, version] = ModelQueue(model, version, options)
        queue.options, queue.limit = options, options.largest
        return queue

    def remove(self, model: str, version: int) -> list[Request]:
        """It is not served any more; those who waited for it."""
        queue = self.queues.pop((model, version), None)
        self._waiting.pop((model, version), None)
        if all(name != model for name, _ in self.queues):
            self._shares.forget(model)
        if queue is None:
            return []
        queue.removed = True
        return queue.drain()

    def put(self, queue: ModelQueue, request: Request) -> ServingError | None:
        """Queue a request; an error if the queue is full."""
        refused = queue.put(request)
        if refused is None:
            self._waiting[queue.model, queue.version] = queue
            self._note(queue.model, request.arrived)
        return refused

    def take(self, now: float) -> tuple[RunningBatch | None, list[Request]]:
        """The next batch if one is due and a slot is free, and the requests whose deadline has
        passed."""
        if self.running >= self.slots or not self._waiting:
            return None, []
        expired: list[Request] = []
        while True:
            due = self._due(now)
            if not due:
                return None, expired
            if len(due) > 1:
                highest = max(queue.options.priority for _, queue in due)
                due = [one for one in due if one[1].options.priority == highest]
            if len(due) == 1:
                queue = due[0][1]
            else:
                model = self._shares.choose((queue.model, since) for since, queue in due)
                queue = min((one for one in due if one[1].model == model), key=itemgetter(0))[1]
            batch, late = queue.take(now)
            expired += late
            if not queue.rows:
                self._waiting.pop((queue.model, queue.version), None)
            if batch is not None:
                self.running += 1
                self.begun += 1
                self._began = now
                share = self._shares.begin(queue.model, queue.seconds, queue.options.weight)
                brief = batch.brief and not self._another_asked(queue.model, now)
                run = self._runs[self.begun] = RunningBatch(batch, share, brief, self.begun, now)
                return run, expired

    def finish(self, run: RunningBatch, seconds: float, oldest: float) -> None:
        """Its batch is done: it took so long, and its first request waited so long in all."""
        queue = run.batch.queue
        self.running -= 1
        del self._runs[run.number]
        self._shares.end(run.share, seconds, queue.options.weight)
        queue.finish(run.batch, seconds, oldest)

    def put_back(self, run: RunningBatch) -> None:
        """Its model is not in memory after all: it waits again, until it is."""
        queue = run.batch.queue
        self.running -= 1
        del self._runs[run.number]
        self._shares.end(run.share, 0.0, queue.options.weight)
        queue.put_back(run.batch)
        queue.present = False
        if self.queues.get((queue.model, queue.version)) is queue:
            self._waiting[queue.model, queue.version] = queue

    def next_due(self, now: float) -> float | None:
        """When a batch will be due by itself; None if only something new can make one so."""
        if self.running >= self.slots:
            return None
        times = [
            due
            for queue in self._waiting.values()
            # One that is held back goes on when a batch of its own is done.
            if (due := queue.due(now)) is not None
            and not self._held_back(queue, now)
            and not self.another_suspect_runs(queue, now, loads=True)
        ]
        return min(times, default=None)

    def progress(self, now: float) -> list[BatchProgress]:
        found = []
        for run in self._runs.values():
            batch, queue = run.batch, run.batch.queue
            expected = max(queue.seconds, queue.per_row * batch.rows)
            wanted = any(part.request.is_wanted(now) for part in batch.parts)
            found.append(
                BatchProgress(
                    run.number,
                    queue.model,
                    queue.version,
                    now - run.began,
                    expected,
                    wanted,
                    self._holds_up(run, now),
                )
            )
        return found

    def _holds_up(self, run: RunningBatch, now: float) -> float:
        # Who has asked may have given up since, and does not wait any more: it counts all the same.
        queue = run.batch.queue
        if self.running >= self.slots:
            began, behind = self._began, list(self.queues.values())
        else:
            began, behind = run.began, [queue] if queue.exclusive else []
            if now < queue.suspect:
                behind += [one for one in self.queues.values() if now < one.suspect]
        return now - began if any(one.asked > began for one in behind) else 0.0

    def absent(self) -> list[ModelQueue]:
        """Queues whose model has to be loaded."""
        return [queue for queue in self._waiting.values() if not queue.present]

    def another_suspect_runs(self, queue: ModelQueue, now: float, loads: bool = False) -> bool:
        """Whether this suspect has to wait for another one that runs, or, with `loads`, is
        loaded."""
        return now < queue.suspect and any(
            (other.running or (loads and other.loading))
            and now < other.suspect
            and other is not queue
            for other in self.queues.values()
        )

    def _due(self, now: float) -> list[tuple[float, ModelQueue]]:
        found = []
        for queue in list(self._waiting.values()):
            due = queue.due(now)
            if due is not None and due <= now:
                if not self.another_suspect_runs(queue, now, loads=True):
                    found.append((due, queue))
            elif not queue.rows:
                del self._waiting[queue.model, queue.version]
        if any(queue.model != found[0][1].model for _, queue in found):
            return found
        return [one for one in found if not self._held_back(one[1], now)]

    def _note(self, model: str, now: float) -> None:
        if self._asked and next(reversed(self._asked)) != model:
            self._asked.pop(model, None)
            if len(self._asked) == 2:
                del self._asked[next(iter(self._asked))]
        self._asked[model] = now

    def _another_asked(self, model: str, now: float) -> bool:
        return any(other != model and now - when < _LATELY for other, when in self._asked.items())

    def _held_back(self, queue: ModelQueue, now: float) -> bool:
        """Whether it yields to others. If so, it is asked again when a running batch ends."""
        if self.slots < 2 or not self.running or queue.seconds <= _LONG:
            return False
        if queue.running >= self.slots - 1:
            return self._another_asked(queue.model, now)
        return queue.rows >= _FLOODED * queue.limit and any(
            other.running
            and not other.rows
            and other.model != queue.model
            and self._shares.ahead(queue.model, other.model, other.seconds / other.options.weight)
            for other in self.queues.values()
        )
