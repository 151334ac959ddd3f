"""Losses and metrics of all models for one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from keras.src import backend, tree

from ..tensor_notes import with_logits, with_mask
from .numbers import Numbers
from .values import Value


class Losses:
    """What compile said of losses and metrics, for all models. Where losses have other settings
    (weights, smoothing) in some models, each model's loss is computed by itself."""

    def __init__(self, first: Any, models: Sequence[Any], numbers: Numbers) -> None:
        self._models = models
        self._numbers = numbers
        self._first = first
        self._alike = len({repr(loss_settings(model)) for model in [first, *models]}) == 1
        self._tracked = [one for metric in _loss_metrics(first) for one in metric.variables]
        self._metrics = [
            one
            for one in first.metrics_variables
            if all(one is not other for other in [*self._tracked, *first._loss_tracker.variables])
        ]

    def __call__(
        self, y: Value | Any, outputs: Any, weight: Any, state: Mapping[int, Any]
    ) -> tuple[Any, dict[int, Any]]:
        """The loss that compile asked for, of each model, and the new values of metrics of losses.

        `y`, `outputs` and `weight` are structures of Values.
        """
        first, tracked = self._first, self._tracked
        if first._compile_loss is None:
            return tf.zeros([len(self._models)]), {}

        def of_one(place: int | None, slices: Any, values: Any) -> Any:
            model = first if place is None else self._models[place]
            own = [one for metric in _loss_metrics(model) for one in metric.variables]
            mapping = list(zip(own, values, strict=True))
            with backend.StatelessScope(mapping) as scope:
                loss = model._compile_loss(*slices)
                after = [scope.get_current_value(variable) for variable, _ in mapping]
            if loss.shape.rank:
                loss = tf.reduce_sum(loss)  # As its gradient does. Keras shows its mean.
            return loss, after

        loss, after = self._each(
            of_one, (y, outputs, weight), [state[id(one)] for one in tracked], self._alike
        )
        return loss, dict(zip(map(id, tracked), after, strict=True))

    def regularisation(self, state: Mapping[int, Any]) -> list[Any]:
        """What regularisers of weights add to the loss of each model."""
        found = []
        for variable in self._first.trainable_weights:
            if variable.regularizer is not None:
                found.append(self._regularised(variable, state[id(variable)]))
        return found

    def _regularised(self, variable: Any, weights: Any) -> Any:
        chosen = self._numbers.of([variable.regularizer])
        values = [tf.convert_to_tensor(self._numbers.variables[place]) for place in chosen]

        def of_one(slices: Any) -> Any:
            weight, numbers = slices
            with self._numbers.put(chosen, numbers):
                return tf.reduce_sum(variable.regularizer(weight))

        return vectorised(of_one, (weights, values))

    def metrics(
        self, loss: Any, y: Any, outputs: Any, weight: Any, rows: Any, state: Mapping[int, Any]
    ) -> dict[int, Any]:
        """The new values of all metrics, after a batch of so many rows."""
        first = self._first
        total, count = first._loss_tracker.variables
        rows = tf.cast(rows, loss.dtype)
        new = {
            id(total): state[id(total)] + tf.cast(loss * rows, total.dtype),
            id(count): state[id(count)] + tf.cast(rows, count.dtype),
        }
        if first._compile_metrics is None or not self._metrics:
            return new

        def of_one(_: int | None, slices: Any, values: Any) -> Any:
            mapping = list(zip(self._metrics, values, strict=True))
            with backend.StatelessScope(mapping) as scope:
                first._compile_metrics.update_state(*slices)
                return [scope.get_current_value(variable) for variable in self._metrics]

        after = self._each(
            of_one, (y, outputs, weight), [state[id(one)] for one in self._metrics], True
        )
        new.update(zip(map(id, self._metrics), after, strict=True))
        return new

    def _each(self, of_one: Callable[..., Any], given: Any, state: list[Any], alike: bool) -> Any:
        """Compute something for each model, at once if it can be."""
        flat = [one for one in tree.flatten(given) if isinstance(one, Value)]
        stacked = [one for one in flat if one.stacked]
        masked = [one for one in stacked if one.mask is not None]

        def slices(tensors: Sequence[Any], masks: Sequence[Any], logits: Sequence[Any]) -> Any:
            known = {id(one): tensor for one, tensor in zip(stacked, tensors, strict=True)}
            hung = {id(one): mask for one, mask in zip(masked, masks, strict=True)}
            made = {id(one): of for one, of in zip(stacked, logits, strict=True)}

            def plain(one: Any) -> Any:
                if not isinstance(one, Value):
                    return one
                if not one.stacked:
                    return one.plain
                return with_logits(with_mask(known[id(one)], hung.get(id(one))), made[id(one)])

            return tree.map_structure(plain, given)

        models = len(self._models)
        tensors = [one.tensor for one in stacked]
        masks = [one.mask.along(models) for one in masked if one.mask is not None]
        elems = (tensors, masks, [one.logits for one in stacked], state)
        if alike:
            return vectorised(lambda one: of_one(None, slices(*one[:3]), one[3]), elems)
        found = []
        for place in range(models):
            one = tree.map_structure(lambda tensor, place=place: tensor[place], elems)
            found.append(of_one(place, slices(*one[:3]), one[3]))
        return tree.map_structure(lambda *parts: tf.stack(parts), *found)


def vectorised(of_one: Callable[[Any], Any], elems: Any) -> Any:
    """Compute it for all models at once; what TensorFlow cannot turn into that, one by one."""
    try:
        return tf.vectorized_map(of_one, elems, fallback_to_while_loop=False)
    except (ValueError, NotImplementedError, TypeError, AssertionError):
        return tf.vectorized_map(of_one, elems, fallback_to_while_loop=True, warn=False)


def loss_settings(model: Any) -> Any:
    """All that the loss of a model was made with."""
    from .architecture import settings

    loss = model._compile_loss
    return None if loss is None else settings([loss._user_loss, loss._user_loss_weights])


def _loss_metrics(model: Any) -> list[Any]:
    """The means of the losses of several outputs."""
    return list(getattr(model._compile_loss, "metrics", ()) or ())
