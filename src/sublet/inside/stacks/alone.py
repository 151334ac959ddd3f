"""One model, trained by Keras' own step: what a stack has to equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from keras.src import tree

from ..optimizer_variables import inner
from ..training.refused import Refused
from .batches import Chunk
from .chunk_loop import chunk_loop, spec_of
from .numbers import numbers_of, places, put
from .state import copied
from .trainer import Logs, flat_logs


class Alone:
    """A member of a Group: one model, whose own variables are always up to date."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._functions: dict[Any, Callable[..., Any]] = {}

    @property
    def models(self) -> Sequence[Any]:
        return (self._model,)

    def begin(self) -> None:
        self._model.reset_metrics()

    def train(self, chunk: Chunk) -> None:
        self._run(True, chunk)

    def test(self, chunk: Chunk) -> None:
        self._run(False, chunk)

    def logs(self) -> list[Logs]:
        return [flat_logs(self._model.get_metrics_result())]

    def keep(self, places: Sequence[int]) -> None:
        if list(places) != [0]:
            raise Refused("A model alone cannot leave.", "End its training instead.")

    def copy(self, source: int, target: int) -> None:
        pass

    def snapshot(self, place: int) -> list[Any]:
        return [variable.numpy() for variable in copied(self._model)]

    def restore(self, place: int, snapshot: Sequence[Any]) -> None:
        for variable, value in zip(copied(self._model), snapshot, strict=True):
            variable.assign(value)

    def numbers(self, place: int) -> dict[str, float]:
        return numbers_of(self._model)

    def set(self, place: int, name: str, value: float) -> None:
        rate = inner(self._model.optimizer)._learning_rate
        if name == "learning_rate" and hasattr(rate, "assign"):
            rate.assign(value)
            return
        for known, owner, attribute in places(self._model):
            if known == name:
                put(owner, attribute, value)
                self._functions.clear()  # It is a constant of the graph.
                return
        known = ", ".join(numbers_of(self._model))
        raise Refused(f"No number {name!r} can be set.", f"There are: {known}.")

    def write_back(self, whole: bool = True) -> None:
        pass

    def _run(self, training: bool, chunk: Chunk) -> None:
        self.build(chunk)
        chunk = chunk.alone()
        self._traced(training, chunk)(chunk.data, chunk.steps)

    def build(self, chunk: Chunk) -> None:
        """Make the variables of metrics and optimizer, if they are missing."""
        if not self._model.optimizer.built:
            one = chunk.alone().data
            self._model._symbolic_build(data_batch=tree.map_structure(lambda x: x[0], one))

    def _traced(self, training: bool, chunk: Chunk) -> Callable[..., Any]:
        """Keras' step, as often as a chunk like this one has batches."""
        spec = spec_of(chunk.data)
        key = training, str(spec)
        if key not in self._functions:
            model = self._model
            step = model.train_step if training else model.test_step
            one = tf.function(step, autograph=False, jit_compile=model.jit_compile)
            self._functions[key] = chunk_loop(one, spec)
        return self._functions[key]
