"""Several models of one architecture, trained as one."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from keras.src import tree

from ..optimizer_variables import inner
from ..parts.calls import Graph
from ..training.micro_step import unpack
from . import checks
from .batches import Chunk
from .chunk_loop import chunk_loop, spec_of
from .forms.site import Lookup
from .forward import forward
from .losses import Losses
from .numbers import Numbers
from .state import State, copied
from .trainer import Logs, flat_logs
from .updates import Gradient, updated
from .values import Value, fold, unfold


class Stack:
    """A member of a Group. Each step computes all models in one graph, and then changes all
    variables."""

    def __init__(self, models: Sequence[Any], chunk: Chunk) -> None:
        """Raises CannotStack if these models cannot be trained as one with chunks like this."""
        checks.check(models)
        checks.prepare(models, tree.map_structure(lambda one: one[0], chunk.alone().data))
        self._first = models[0]
        """The model that stands for all, also when it has left. Its variables are not used."""
        self._graph = Graph.of(self._first)
        self._models = list(models)
        self._numbers = Numbers(models)
        self._state = State(models)
        self._functions: dict[Any, Callable[..., Any]] = {}
        self._steps = tf.Variable(0, trainable=False, dtype=tf.int64)
        """How many steps are whole."""
        self._before = 0
        self._written: set[str] = set()
        """What the models' own variables have of what the stack has."""
        self._losses = Losses(self._first, models, self._numbers)
        self._traced(True, chunk)  # What cannot be computed is found now.

    @property
    def models(self) -> Sequence[Any]:
        return tuple(self._models)

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """What is computed meanwhile leaves nothing behind."""
        kept = self._state.read()
        try:
            yield
        finally:
            self._state.put_back(kept)

    def begin(self) -> None:
        self._state.begin()

    def train(self, chunk: Chunk) -> None:
        self._run(True, chunk)

    def test(self, chunk: Chunk) -> None:
        self._run(False, chunk)

    def logs(self) -> list[Logs]:
        first, metrics = self._first, self._state.metrics
        rows = self._state.rows(metrics)
        found = []
        for place in range(len(self._models)):
            for variable, values in zip(metrics, rows, strict=True):
                variable.assign(values[place])
            found.append(flat_logs(first.get_metrics_result()))
        first.reset_metrics()
        return found

    @property
    def done(self) -> int:
        """How many steps of the last chunk are whole."""
        return int(self._steps) - self._before

    def halves(self) -> list[Stack]:
        """Two stacks that go on with what this one has, which is not used any more."""
        middle = (len(self._models) + 1) // 2
        found = []
        for places in (range(middle), range(middle, len(self._models))):
            half = copy.copy(self)
            half._numbers, half._state = copy.copy(self._numbers), copy.copy(self._state)
            half._functions = {}
            half._keep(list(places))
            found.append(half)
        return found

    def keep(self, places: Sequence[int]) -> None:
        leaving = [place for place in range(len(self._models)) if place not in places]
        self._write_back(leaving, "optimizers" in self._written)
        self._keep(places)

    def _keep(self, places: Sequence[int]) -> None:
        self._models = [self._models[place] for place in places]
        self._numbers.keep(places)
        self._state.keep(places)
        self._losses = Losses(self._first, self._models, self._numbers)
        self._functions = {}
        self._steps = tf.Variable(0, trainable=False, dtype=tf.int64)

    def copy(self, source: int, target: int) -> None:
        self.restore(target, self.snapshot(source))

    def snapshot(self, place: int) -> list[Any]:
        """Weights, statistics and the optimizer's state of one model, as arrays."""
        return [self._state.of(one)[place].numpy() for one in copied(self._first)]

    def restore(self, place: int, snapshot: Sequence[Any]) -> None:
        """Give one model what `snapshot` has of another."""
        for one, value in zip(copied(self._first), snapshot, strict=True):
            self._state.of(one)[place].assign(value)
        self._written = set()

    def numbers(self, place: int) -> dict[str, float]:
        found = self._numbers.of_model(place)
        rate = inner(self._first.optimizer)._learning_rate
        if hasattr(rate, "assign"):
            found["learning_rate"] = float(self._state.of(rate)[place])
        return found

    def set(self, place: int, name: str, value: float) -> None:
        self._written = set()
        rate = inner(self._first.optimizer)._learning_rate
        if name == "learning_rate" and hasattr(rate, "assign"):
            self._state.of(rate)[place].assign(value)
        elif self._numbers.set(place, name, value):
            self._functions = {}

    def write_back(self, whole: bool = True) -> None:
        wanted = {"weights", "optimizers"} if whole else {"weights"}
        if wanted - self._written:
            self._write_back(range(len(self._models)), whole)
            self._written = self._written | wanted

    def _write_back(self, places: Iterable[int], whole: bool) -> None:
        self._state.write_back({place: self._models[place] for place in places}, whole)
        for place in places:
            self._numbers.write_back(place)

    def _run(self, training: bool, chunk: Chunk) -> None:
        self._before = int(self._steps)
        if training:
            self._written = set()
        self._traced(training, chunk)(chunk.data, chunk.steps)

    def _traced(self, training: bool, chunk: Chunk) -> Callable[..., Any]:
        """The graph for chunks like this one, with any number of steps."""
        spec = spec_of(chunk.data)
        key = training, chunk.ordered, str(spec)
        if key not in self._functions:

            def step(batch: Any) -> None:
                self._step(batch, chunk.ordered, training)

            self._functions[key] = chunk_loop(step, spec)
        return self._functions[key]

    def _step(self, batch: Any, ordered: bool, training: bool) -> None:
        """Take one step of all models, or evaluate them with one batch."""
        x, y, weight = tree.map_structure(
            lambda one: None if one is None else Value(one, ordered), unpack(batch)
        )
        state = self._state.read()
        weights = self._state.weights
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([state[id(one)] for one in weights])
            inputs = self._inputs(x, ordered)
            found = forward(
                self._graph, len(self._models), inputs, state, self._numbers, training, tape.watch
            )
            outputs = self._graph.packed(dict(zip(self._graph.outputs, found.values, strict=True)))
            loss, new = self._losses(y, outputs, weight, state)
            more = [*found.losses, *self._losses.regularisation(state)]
            loss = tf.add_n([loss, *(tf.cast(one, loss.dtype) for one in more)])
            scaled = self._scaled(loss, state)
        rows = tf.shape(tree.flatten(x)[0].tensor)[1 if ordered else 0]
        new |= self._losses.metrics(loss, y, outputs, weight, rows, {**state, **new})
        new |= found.changed
        if training:
            gradients = self._gradients(tape, scaled, found.lookups, state)
            new |= updated(
                self._first,
                self._models,
                self._numbers,
                gradients,
                weights,
                self._state.slots,
                state,
            )
        self._state.assign(new, self._steps)

    def _gradients(
        self, tape: Any, loss: Any, lookups: Sequence[Lookup], state: Mapping[int, Any]
    ) -> list[Gradient]:
        """The gradients of all weights; of tables, those of the rows that were taken."""
        weights = self._state.weights
        dense, rows = tape.gradient(
            loss, ([state[id(one)] for one in weights], [one.found for one in lookups])
        )
        found = [Gradient(gradient) for gradient in dense]
        places = {id(one): place for place, one in enumerate(weights)}
        for lookup, gradient in zip(lookups, rows, strict=True):
            if gradient is not None and id(lookup.table) in places:
                place = places[id(lookup.table)]
                found[place] = found[place].and_rows(lookup.rows, gradient)
        return found

    def _inputs(self, x: Any, ordered: bool) -> dict[int, Value]:
        """The inputs of the graph, as Keras would make them of a batch."""
        if not ordered:
            given = tree.map_structure(lambda one: one.tensor, x)
            return {number: Value(one, False) for number, one in self._graph.flat(given).items()}
        given = tree.map_structure(lambda one: fold(one.tensor), x)
        models = len(self._models)
        return {
            number: Value(unfold(one, models), True)
            for number, one in self._graph.flat(given).items()
        }

    def _scaled(self, loss: Any, state: Any) -> Any:
        """The losses as the optimizers want them for gradients of numbers with few digits."""
        optimizer = self._first.optimizer
        if inner(optimizer) is not optimizer:
            return loss * state[id(optimizer.dynamic_scale)]
        if optimizer.loss_scale_factor is None:
            return loss
        return loss * self._numbers.tensor("loss_scale_factor")
