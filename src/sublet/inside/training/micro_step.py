"""One step of a Keras model over a batch: as a whole, or one micro-batch after the other.

A step computes gradients and metrics, and applies the gradients once. It begins to apply them when
all are there. So a step that has run out of memory before that has changed no weight, and can be
done again with less at a time.

Numbers that layers keep (the moving statistics of BatchNormalization, say) begin each micro-batch
as they were before the batch, and are its mean over the micro-batches afterwards: they move as far
as they would with the whole batch.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from . import batch, loss_parts
from .assigned import assigned, is_float
from .loss_parts import Part


class Traced:
    """The graph of one micro-batch, and what its tracing has shown."""

    def __init__(self) -> None:
        self.function: Callable[..., Any]
        self.dense: list[int] = []
        self.sparse: list[int] = []
        """The places of the weights that have a gradient: for all of the weight, or for the rows of
        an embedding that occur. Keras' optimizers do not treat the two alike."""
        self.amounts = 0
        """How many losses are divided by something that has to be counted first."""
        self.slices: list[tuple[Any, Any]] = []
        """Type and shape of what the sparse gradients consist of."""
        self.outputs = 0
        self.moved: list[Any] = []
        """The variables that layers change while they are called, which are not counters."""


class MicroStep:
    """The steps of one model, in training or in evaluation."""

    def __init__(self, model: Any, trains: bool, scalars: str = "mean") -> None:
        self.model = model
        self.trains = trains
        self.scalars = scalars
        self.opaque = has_own_loss(model)
        self._traced: dict[str, Traced] = {}
        self._made: dict[str, Callable[..., Any]] = {}
        self.spec: Any = None
        """What is known of all batches, if anything is: shapes that Keras shows to a model."""
        self._local: list[Any] | None = None
        """Copies of the weights, if the step is computed with them."""
        self._begun: Any = None
        """Counts the steps that have begun to apply gradients."""
        self._done = 0

    def build(self, piece: Any) -> None:
        """Make all variables that a part of a batch needs. The caller puts back what changes."""
        model = self.model
        x, y, sample_weight = unpack(piece)
        looks = MicroStep(model, trains=False)
        outputs = looks._call(x)
        looks._loss(x, y, outputs, sample_weight)
        model.compute_metrics(x, y, outputs, sample_weight=sample_weight)

    @property
    def draws(self) -> str:
        """What of the program's own draws random numbers, as far as that is known."""
        return ""

    def whole(self, data: Any) -> Any:
        """Take a step with a batch, computed in one. Returns the metrics."""
        logs = self._function("whole", self._whole, self.spec and [self.spec], jit=True)(data)
        self._done += 1
        return logs

    def split(self, data: Any, size: int) -> Any:
        """The same, computed with so many rows at a time."""
        import tensorflow as tf

        signature = self.spec and [self.spec, tf.TensorSpec([], tf.int32)]
        logs = self._function("split", self._split, signature)(data, tf.constant(size))
        self._done += 1
        return logs

    @property
    def half_done(self) -> bool:
        """Whether a step that has failed may have changed weights."""
        return self._begun is not None and int(self._begun) > self._done

    def one(self, data: Any, rows: int) -> None:
        """Compute the first rows of the batch as one micro-batch, and drop the result."""
        import tensorflow as tf

        piece = batch.part(data, 0, rows)
        totals = tf.ones([loss_parts.MOST_TOTALS])
        if self.model.run_eagerly:
            self._micro(Traced(), piece, batch.rows(data), totals)
        else:
            traced = self._trace(piece)
            traced.function(piece, batch.rows(data), totals)

    def state(self) -> list[Any]:
        """The variables that a step changes before the optimizer does."""
        model = self.model
        return [*model.metrics_variables, *model.non_trainable_variables]

    def _function(
        self, name: str, python: Callable[..., Any], signature: Any, jit: bool = False
    ) -> Callable[..., Any]:
        """The graph function, made once for each signature; without one, TensorFlow looks at what
        it is given."""
        import tensorflow as tf

        if self.model.run_eagerly:
            return python
        key = f"{name} {signature}"
        if key not in self._made:
            self._made[key] = tf.function(
                python,
                signature,
                autograph=False,
                reduce_retracing=signature is None,
                jit_compile=self.model.jit_compile if jit else None,
            )
        return self._made[key]

    def _call(self, x: Any) -> Any:
        if getattr(self.model, "_call_has_training_arg", True):
            return self.model(x, training=self.trains)
        return self.model(x)

    def _loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
        return self.model._compute_loss(
            x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=self.trains
        )

    def _gradients(self, tape: Any, loss: Any) -> list[Any]:
        weights = self._local or self.model.trainable_weights
        if not weights:
            warnings.warn("The model does not have any trainable weights.", stacklevel=2)
            return []
        gradients: list[Any] = tape.gradient(loss, weights)
        return gradients

    def _scaled(self, loss: Any) -> Any:
        optimizer = self.model.optimizer
        return loss if optimizer is None or not self.trains else optimizer.scale_loss(loss)

    def _whole(self, data: Any) -> Any:
        import tensorflow as tf

        x, y, sample_weight = unpack(data)
        with tf.GradientTape() as tape:
            y_pred = self._call(x)
            loss = self._loss(x, y, y_pred, sample_weight)
            scaled = self._scaled(loss)
        self.model._loss_tracker.update_state(loss, sample_weight=batch.rows(data))
        logs = self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        if self.trains:
            self._apply(self._gradients(tape, scaled))
        return logs

    def _split(self, data: Any, size: Any) -> Any:
        import tensorflow as tf

        rows = batch.rows(data)
        pieces = (rows + size - 1) // size
        traced = self._looked_at(data, size)
        totals = self._totals(traced, data, rows, size, pieces)
        moved = traced.moved
        before = [tf.convert_to_tensor(variable) for variable in moved]
        weights = self._weights()
        dense = traced.dense

        def body(number: Any, sums: list[Any], rows_of: list[Any]) -> tuple[Any, ...]:
            piece = batch.part(data, number * size, tf.minimum((number + 1) * size, rows))
            for variable, value in zip(moved, before, strict=True):
                variable.assign(value)
            found, slices = traced.function(piece, rows, totals)
            share = tf.cast(batch.rows(piece), tf.float32) / tf.cast(rows, tf.float32)
            moves = [tf.convert_to_tensor(one) * tf.cast(share, one.dtype) for one in moved]
            sums = [
                one + tf.cast(more, one.dtype)
                for one, more in zip(sums, [*found, *moves], strict=True)
            ]
            rows_of = [
                array.write(number, more) for array, more in zip(rows_of, slices, strict=True)
            ]
            return number + 1, sums, rows_of

        sums = [tf.zeros([])] * (1 + traced.outputs)
        sums += [tf.zeros(weights[place].shape, weights[place].dtype) for place in dense]
        sums += [tf.zeros_like(one) for one in before]
        rows_of = [_array(kind, shape, pieces) for kind, shape in traced.slices]
        _, sums, rows_of = tf.while_loop(
            lambda number, *_: number < pieces,
            body,
            (tf.constant(0), sums, rows_of),
            parallel_iterations=1,
        )
        return self._end(traced, data, rows, sums, [array.concat() for array in rows_of])

    def _looked_at(self, data: Any, size: Any) -> Traced:
        """What is known of micro-batches of this batch."""
        if not self.model.run_eagerly:
            return self._trace(batch.part(data, 0, size))
        traced = Traced()
        self._look(traced, batch.part(data, 0, size))
        return traced

    def _end(self, traced: Traced, data: Any, rows: Any, sums: list[Any], slices: list[Any]) -> Any:
        """Take the step with the sums over all micro-batches. Returns the metrics."""
        loss, outputs, sums = sums[0], sums[1 : traced.outputs + 1], sums[traced.outputs + 1 :]
        for variable, value in zip(traced.moved, sums[len(traced.dense) :], strict=True):
            variable.assign(value)
        gradients = self._joined(traced, sums, slices)
        self._note(loss, outputs, rows, data)
        logs = self.model.get_metrics_result()
        if self.trains:
            self._apply(gradients)
        return logs

    def _joined(self, traced: Traced, sums: list[Any], slices: list[Any]) -> list[Any]:
        """The gradients of all weights, None for those that have none."""
        import tensorflow as tf

        weights = self._weights()
        gradients: list[Any] = [None] * len(weights)
        for place, value in zip(traced.dense, sums, strict=False):
            gradients[place] = value
        for number, place in enumerate(traced.sparse):
            values, indices = slices[2 * number : 2 * number + 2]
            gradients[place] = tf.IndexedSlices(
                values, indices, tf.constant(tuple(weights[place].shape))
            )
        return gradients

    def _weights(self) -> list[Any]:
        """What the optimizer changes."""
        weights: list[Any] = self.model.trainable_weights
        return weights

    def _note(self, loss: Any, outputs: list[Any], rows: Any, data: Any) -> None:
        """Feed the means that Keras keeps of losses, as a batch in one would."""
        self.model._loss_tracker.update_state(loss, sample_weight=rows)
        known = batch.leaves(data)[0].shape[0]
        metrics = getattr(self.model._compile_loss, "metrics", ())
        for metric, value in zip(metrics, outputs, strict=True):
            metric.update_state(value, sample_weight=known)

    def _totals(self, traced: Traced, data: Any, rows: Any, size: Any, pieces: Any) -> Any:
        """What the losses of the batch are divided by, where that is not the number of rows. Masks
        do not depend on whether a model is trained, so nothing of it changes here."""
        import tensorflow as tf

        zeros = tf.zeros([loss_parts.MOST_TOTALS])
        if not traced.amounts:
            return zeros

        def count(number: Any, sums: Any) -> tuple[Any, Any]:
            piece = batch.part(data, number * size, tf.minimum((number + 1) * size, rows))
            x, y, sample_weight = unpack(piece)
            part = Part(batch.rows(piece), rows, self.scalars, self.opaque)
            kept = self.trains
            self.trains = False
            try:
                with loss_parts.computing(part, self.model):
                    self._loss(x, y, self._call(x), sample_weight)
            finally:
                self.trains = kept
            amounts = tf.stack(part.amounts[: loss_parts.MOST_TOTALS])
            missing = loss_parts.MOST_TOTALS - amounts.shape[0]
            return number + 1, sums + tf.pad(amounts, [[0, missing]])

        _, totals = tf.while_loop(
            lambda number, _: number < pieces,
            count,
            (tf.constant(0), zeros),
            parallel_iterations=1,
        )
        return totals

    def _trace(self, piece: Any) -> Traced:
        """The graph of a micro-batch like this one, with any number of rows."""
        import tensorflow as tf

        spec = batch.any_rows(piece)
        key = str(spec)
        if key not in self._traced:
            traced = Traced()
            function = tf.function(
                functools.partial(self._micro, traced),
                autograph=False,
                jit_compile=self.model.jit_compile,
            )
            traced.function = function.get_concrete_function(
                spec,
                tf.TensorSpec([], tf.int32),
                tf.TensorSpec([loss_parts.MOST_TOTALS], tf.float32),
            )
            self._traced[key] = traced
        return self._traced[key]

    def _look(self, traced: Traced, piece: Any) -> None:
        """The same without a graph, for a model that runs eagerly: it is computed once, and what it
        has changed is put back."""
        import tensorflow as tf

        kept = [(one, tf.convert_to_tensor(one)) for one in self.state()]
        self._micro(traced, piece, batch.rows(piece), tf.ones([loss_parts.MOST_TOTALS]))
        for variable, value in kept:
            variable.assign(value)
        traced.function = functools.partial(self._micro, Traced())

    def _micro(
        self, traced: Traced, piece: Any, rows: Any, totals: Any
    ) -> tuple[list[Any], list[Any]]:
        """One micro-batch of a batch of `rows`: its parts of the loss, of each output's loss and of
        the gradients; and the rows of embeddings that have gradients, with their numbers."""
        import tensorflow as tf

        x, y, sample_weight = unpack(piece)
        part = Part(batch.rows(piece), rows, self.scalars, self.opaque, totals)
        statistics = filter(is_float, self.model.non_trainable_variables)
        with loss_parts.computing(part, self.model), assigned(statistics) as moved:
            with tf.GradientTape() as tape:
                tape.watch(self._local or [])
                y_pred = self._call(x)
                loss = self._loss(x, y, y_pred, sample_weight)
                if self.opaque:
                    loss = part.of_scalar(loss)
                scaled = self._scaled(loss)
            gradients = self._gradients(tape, scaled) if self.trains else []
            self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        traced.amounts = len(part.amounts)
        traced.outputs = len(part.outputs)
        traced.moved = moved
        sums, slices = [], []
        for place, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                traced.sparse.append(place)
                slices += [gradient.values, gradient.indices]
            elif gradient is not None:
                traced.dense.append(place)
                sums.append(gradient)
        traced.slices = [(one.dtype, one.shape[1:]) for one in slices]
        if loss.shape.rank:
            # A loss that is not reduced: its gradients add up, and Keras shows its mean.
            loss = tf.reduce_mean(loss) * tf.cast(part.share, loss.dtype)
        return [loss, *part.outputs, *sums], slices

    def _apply(self, gradients: list[Any]) -> None:
        """The optimizer's step."""
        if gradients:
            with self._beginning(gradients):
                weights = self.model.trainable_weights
                self.model.optimizer.apply_gradients(list(zip(gradients, weights, strict=True)))

    @contextlib.contextmanager
    def _beginning(self, gradients: list[Any]) -> Iterator[None]:
        """The body runs when all gradients are there; the step counts as begun."""
        import tensorflow as tf

        if self._begun is None:
            with tf.init_scope():
                self._begun = tf.Variable(self._done, dtype=tf.int64, trainable=False)
        ready = [one for one in gradients if one is not None]
        with tf.control_dependencies(tf.nest.flatten(ready, expand_composites=True)):
            begun = self._begun.assign_add(1, read_value=False)
        with tf.control_dependencies([begun] if begun is not None else []):
            yield


def _array(kind: Any, shape: Any, size: Any) -> Any:
    """An array for tensors with different numbers of rows."""
    import tensorflow as tf

    return tf.TensorArray(kind, size, element_shape=[None, *shape], infer_shape=False)


def has_own_loss(model: Any) -> bool:
    """Whether the program computes the loss of the model by a function of its own."""
    from keras.src.trainers.trainer import Trainer

    return type(model).compute_loss is not Trainer.compute_loss


def unpack(data: Any) -> tuple[Any, Any, Any]:
    """Inputs, targets and sample weights of a batch."""
    from keras.src.trainers.data_adapters.data_adapter_utils import unpack_x_y_sample_weight

    x, y, sample_weight = unpack_x_y_sample_weight(data)
    return x, y, sample_weight
