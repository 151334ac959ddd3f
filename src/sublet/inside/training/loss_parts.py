"""A micro-batch's part of the loss of its batch, such that the parts add up to it.

Keras reduces a loss to a number where it is called, by the rows that it sees: a mean over 64 rows
has to count a quarter in a batch of 256. So while a micro-batch is computed, what Keras has reduced
is multiplied by the micro-batch's share of what the batch would have been divided by:

    sum                          1
    mean                         rows / rows of the batch
    mean, with a mask            unmasked elements / those of the batch
    mean by sample weights       weights / those of the batch
    regularisation               rows / rows of the batch, so it counts once
    scalars of functions that    like a mean or like a sum: `checks` finds out
    the program has written

Everything here works on whatever Keras runs in the meantime: outputs, loss weights and class
weights need no thought.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

MOST_TOTALS = 64
"""So many losses of a model may have a mask or weights to be divided by."""


class Part:
    """What is known of the micro-batch while its loss is computed, and what came of it."""

    def __init__(
        self, own: Any, whole: Any, scalars: str, opaque: bool, totals: Any = None
    ) -> None:
        import tensorflow as tf

        self.share = tf.cast(own, tf.float32) / tf.cast(whole, tf.float32)
        """Its part of the rows of the batch."""
        self.opaque = opaque
        """Whether the program computes the whole loss itself, which is then taken as one scalar."""
        self.scalars = scalars
        """What scalars are, if it is the program that has reduced a loss: mean or sum."""
        self.totals = totals
        """What the batch's losses are divided by; None while that is counted."""
        self.amounts: list[Any] = []
        """The same of this micro-batch, for the losses whose divisor is not the number of rows."""
        self.outputs: list[Any] = []
        """The losses of the outputs, if there are several."""

    def of_scalar(self, loss: Any) -> Any:
        """The part of a loss that the program has reduced to a number."""
        return loss if self.scalars == "sum" else loss * _like(self.share, loss)

    def averaged(self, values: Any) -> tuple[Any, Any]:
        """A number that a metric is given for the whole batch, by a function of the program's, and
        its weight: it counts once."""
        return values, self.share

    def divided(self) -> None:
        """Called if a loss is divided by something else than the number of rows, and is not
        corrected for it."""

    def of_divisor(self, amount: Any) -> Any:
        """The share of this loss, which is divided by an amount that depends on the rows."""
        import tensorflow as tf

        number = len(self.amounts)
        self.amounts.append(tf.cast(amount, tf.float32))
        if self.totals is None or number >= MOST_TOTALS:
            return self.share
        return tf.math.divide_no_nan(self.amounts[-1], self.totals[number])


_now = threading.local()


def _part() -> Part | None:
    """The part whose losses Keras computes in this thread now."""
    part = getattr(_now, "part", None)
    return None if part is None or part.opaque else part


@contextlib.contextmanager
def computing(part: Part, model: Any) -> Iterator[Part]:
    """While in the body, losses that Keras computes in this thread are this part's."""
    _now.part = part
    collected: list[Any] = list(getattr(model._compile_loss, "metrics", ()))
    for metric in collected:
        # Of several outputs, Keras keeps the mean of each one's loss: that is fed afterwards.
        metric.update_state = lambda value, sample_weight=None: part.outputs.append(value)
    try:
        yield part
    finally:
        _now.part = None
        for metric in collected:
            del metric.update_state


@contextlib.contextmanager
def reducing(part: Part) -> Iterator[None]:
    """While in the body, metrics that are given one number for all rows in this thread are given
    this part's."""
    _now.part = part
    try:
        yield
    finally:
        _now.part = None


def install() -> None:
    """Patch Keras where it reduces losses, once. Raises AttributeError if it is too different."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.layers.layer import Layer
    from keras.src.losses import loss as losses
    from keras.src.metrics.reduction_metrics import Mean

    if getattr(losses, "_sublet", False):
        return
    reduced = _reduced(losses.reduce_weighted_values, losses.apply_mask)
    aggregated = _aggregated(TensorFlowTrainer._aggregate_additional_loss)
    added, averaged = _added(Layer.add_loss), _averaged(Mean.update_state)
    losses.reduce_weighted_values = reduced
    TensorFlowTrainer._aggregate_additional_loss = aggregated
    Layer.add_loss = added
    Mean.update_state = averaged
    losses._sublet = True


def _reduced(original: Callable[..., Any], apply_mask: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def reduce_weighted_values(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: Any = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        loss = original(values, sample_weight, mask, reduction, dtype)
        part, own = _part(), getattr(_now, "part", None)
        weighted = reduction == "mean_with_sample_weight" and not (sample_weight is mask is None)
        if (
            own is not None
            and part is None
            and (weighted or (mask is not None and _means(reduction)))
        ):
            own.divided()
        if part is None or reduction in (None, "none"):
            return loss
        if _is_scalar(values):
            return part.of_scalar(loss)
        if reduction == "sum":
            return loss
        import tensorflow as tf

        if weighted:
            weights = apply_mask(sample_weight, mask, dtype="float32", reduction=reduction)
            return loss * _like(part.of_divisor(tf.reduce_sum(weights)), loss)
        if mask is not None:
            unmasked = tf.reduce_sum(tf.cast(tf.cast(mask, tf.bool), tf.float32))
            return loss * _like(part.of_divisor(unmasked), loss)
        return loss * _like(part.share, loss)

    return reduce_weighted_values


def _aggregated(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def aggregate_additional_loss(self: Any, loss: Any) -> Any:
        total, part = original(self, loss), _part()
        return total if part is None else total * _like(part.share, total)

    return aggregate_additional_loss


def _added(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def add_loss(self: Any, loss: Any) -> None:
        part = _part()
        if part is not None and part.scalars == "sum":
            import tensorflow as tf

            # What is aggregated counts by its rows.
            loss = tf.nest.map_structure(lambda one: one / _like(part.share, one), loss)
        original(self, loss)

    return add_loss


def _averaged(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> Any:
        part: Part | None = getattr(_now, "part", None)
        if part is not None and sample_weight is None and _is_scalar(values):
            values, sample_weight = part.averaged(values)
        return original(self, values, sample_weight)

    return update_state


def _means(reduction: Any) -> bool:
    return reduction not in (None, "none", "sum")


def _is_scalar(values: Any) -> bool:
    shape = getattr(values, "shape", ())
    return getattr(shape, "rank", len(shape)) == 0


def _like(factor: Any, tensor: Any) -> Any:
    import tensorflow as tf

    return tf.cast(factor, tensor.dtype)
