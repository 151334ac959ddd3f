"""Running a batch: TensorFlow's part of it, and an answer for everybody in it."""

import time
from collections.abc import Callable, Iterable
from functools import partial

from sublet.channel.tensors import Array
from sublet.errors import ServingError

from . import batches, failures
from .answers import Answers
from .client_channels import Client
from .fair_queue import RunningBatch
from .memory import PIECES
from .model_entries import Loaded
from .requests import Batch, Part, Request
from .scheduler import Scheduler
from .signatures import Unloaded

Call = Callable[[], dict[str, Array]]


class BatchRunner:
    """Runs batches, in any thread. `behind` gets the clients that could not be sent everything."""

    def __init__(self, scheduler: Scheduler, behind: Callable[[Iterable[Client]], None]) -> None:
        self._scheduler = scheduler
        self._behind = behind

    def run_batch(self, run: RunningBatch, loaded: Loaded) -> float | None:
        """Run a batch to its end, whatever comes of it; when the next one will be due. Raises
        Unloaded if the model was unloaded just before: then nothing has happened."""
        began = time.monotonic()
        seconds = 0.0
        try:
            seconds = self._compute(run.batch, loaded, began)
        except Unloaded:
            raise
        except BaseException as error:
            # A bug of ours; nobody is to wait for an answer that never comes.
            self._scheduler.finish(run, time.monotonic() - began)
            self.refuse([part.request for part in run.batch.parts], failures.explained(error))
            raise
        return self._scheduler.finish(run, seconds)

    def refuse(self, requests: Iterable[Request], error: ServingError) -> None:
        requests = list(requests)
        self._scheduler.give_up(one for one in requests if one.taken < one.rows)
        answers = Answers(())
        for request in requests:
            # Not if it has its answer, or nobody waits for one. Of two threads with parts of it
            # one takes it out.
            calls = request.client.calls
            waited_for = calls.get(request.call) is request and not request.client.dead
            if waited_for and calls.pop(request.call, None) is request:
                answers.fail(request, error)
        self._behind(answers.send())

    def _compute(self, batch: Batch, loaded: Loaded, began: float, in_pieces: bool = True) -> float:
        """Run it, and send the answers; how long TensorFlow took. `in_pieces`: whether it may be
        split if memory is short."""
        kind = batch.kind
        if kind.bound is None or kind.bound is not loaded.signatures.get(kind.signature):
            self._scheduler.bind(kind, batch.queue, loaded)
            if kind.alone and len(batch.parts) > 1:
                return self._one_by_one(batch, loaded)
        if kind.error is not None:
            self.refuse([part.request for part in batch.parts], kind.error)
            return 0.0
        for request, start, _ in batch.parts:
            if not start:
                request.started = began
        try:
            inputs = batches.gather(batch)
            size = batch.rows if kind.alone else len(inputs[0])
            outputs = self._call(batch, dict(zip(kind.inputs, inputs, strict=True)))
            seconds = time.monotonic() - began
            pieces = batches.scatter(list(outputs.values()), batch, size)
            if not kind.even and not kind.alone and size > 1:
                # A signature whose first dimensions are free may still have no rows in common.
                kind.even = batches.even(list(outputs.values()), size)
                kind.alone = not kind.even
        except Unloaded:
            raise
        except BaseException as error:
            if loaded.stopped.is_set():
                self.refuse([part.request for part in batch.parts], failures.interrupted())
                return batch.queue.seconds  # What it took says nothing of others.
            if len(batch.parts) > 1:
                # One of them may be at fault, and is to fail alone.
                return self._one_by_one(batch, loaded)
            if in_pieces and batch.rows > 1 and not kind.alone and failures.exhausted(error):
                return self._in_pieces(batch.parts[0], batch, loaded)
            self.refuse([batch.parts[0].request], failures.explained(error))
            return time.monotonic() - began
        answers = Answers(tuple(outputs))
        for part, piece in zip(batch.parts, pieces, strict=True):
            request = part.request
            if request.done or request.client.dead:
                continue
            try:
                if part.stop - part.start < request.rows:
                    whole = self._scheduler.assemble(part, piece)
                    if whole is None:
                        continue
                    piece = whole
                answers.put(request, piece, seconds, size)
            except Exception as error:
                # Outputs that are no tensors, or no memory for them: the others have theirs.
                answers.fail(request, failures.unsent(error))
        self._behind(answers.send())
        return seconds

    def _call(self, batch: Batch, inputs: dict[str, Array]) -> dict[str, Array]:
        """Once more, if memory was short and some could be had."""
        call: Call = partial(batch.kind.bound.call, inputs)
        store, key = self._scheduler.store, (batch.queue.model, batch.queue.version)
        try:
            return self._measured(batch, call)
        except Exception as error:
            if not failures.out_of_memory(error):
                raise
            refusal = store.relieve(*key, error)
            if refusal is not None:
                self._note_short(batch)
                raise refusal from error
        try:
            return call()
        except Exception as error:
            if failures.out_of_memory(error):
                self._note_short(batch)
            raise

    def _measured(self, batch: Batch, call: Call) -> dict[str, Array]:
        """Note what it takes, if that says something new and nothing else runs."""
        need, queue = batch.kind.need, batch.queue
        mark = self._scheduler.quiet() if need.tells(batch.nbytes) else None
        if mark is None:
            return call()
        outputs, taken = self._scheduler.store.measured(queue.model, queue.version, call)
        if taken is not None and self._scheduler.quiet() == mark:
            need.note(batch.nbytes, *taken)
        return outputs

    def _note_short(self, batch: Batch) -> None:
        if self._scheduler.quiet() is not None:
            batch.kind.need.note_short(batch.nbytes, time.monotonic())

    def _in_pieces(self, part: Part, batch: Batch, loaded: Loaded) -> float:
        """Run a part that was too large for the memory in pieces."""
        request, start, stop = part
        step = -(-(stop - start) // PIECES)
        total = 0.0
        for begin in range(start, stop, step):
            piece = Part(request, begin, min(begin + step, stop))
            total += self._alone(piece, batch, loaded, in_pieces=False)
            if request.client.calls.get(request.call) is not request:
                break  # It has failed, or nobody waits for it.
        return total

    def _one_by_one(self, batch: Batch, loaded: Loaded) -> float:
        return sum(self._alone(part, batch, loaded) for part in batch.parts)

    def _alone(self, part: Part, batch: Batch, loaded: Loaded, in_pieces: bool = True) -> float:
        """Run one part of a batch that has failed."""
        rows = part.stop - part.start
        alone = batch._replace(parts=[part], rows=rows, nbytes=part.nbytes)
        try:
            return self._compute(alone, loaded, time.monotonic(), in_pieces)
        except Unloaded as error:
            self.refuse([part.request], error)
            return 0.0
