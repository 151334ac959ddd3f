"""Greedy batching as the bare servers do it: whoever is there when the model is free goes along.

One thread runs the model. No limits, no errors, no other models' turns: what Python can reach.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

LARGEST = 32

Array = np.ndarray[Any, Any]
Done = Callable[[Array], None]


def load(path: str) -> Callable[[Array], Array]:
    """The signature of a SavedModel as a function of arrays."""
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    signature = loaded.signatures["serving_default"]
    (name,) = signature.structured_input_signature[1]
    (output,) = signature.structured_outputs

    def call(rows: Array) -> Array:
        answer: Array = signature(**{name: tf.constant(rows)})[output].numpy()
        return answer

    # A signature does not keep its model alive. A function takes attributes; its type has none.
    call.kept = loaded  # type: ignore[attr-defined]
    return call


class Greedy:
    """The queue of one model; `put` from the event loop, answers on the event loop."""

    def __init__(self, call: Callable[[Array], Array], busy: threading.Lock) -> None:
        self._call = call
        self._busy = busy
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Array, Done]] = deque()
        self._some = threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, rows: Array, done: Done) -> None:
        """Rows of one request; `done` gets its part of the answer."""
        self._waiting.append((rows, done))
        self._some.release()

    def _run(self) -> None:
        while True:
            self._some.acquire()
            with self._busy:
                batch = [self._waiting.popleft()]
                count = len(batch[0][0])
                while (
                    self._waiting
                    and count + len(self._waiting[0][0]) <= LARGEST
                    and self._some.acquire(blocking=False)
                ):
                    batch.append(self._waiting.popleft())
                    count += len(batch[-1][0])
                rows = batch[0][0] if len(batch) == 1 else np.concatenate([one for one, _ in batch])
                answers = self._call(rows)
            self._loop.call_soon_threadsafe(_share, batch, answers)


def _share(batch: list[tuple[Array, Done]], answers: Array) -> None:
    at = 0
    for rows, done in batch:
        done(answers[at : at + len(rows)])
        at += len(rows)
