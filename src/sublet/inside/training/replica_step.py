"""A step of which several devices compute a part each.

Layers and metrics keep numbers in variables. Devices that compute at the same time must not assign
to them, so each has values of its own, and the sums of what has changed are assigned when all are
there.
"""

from __future__ import annotations

from typing import Any

from . import batch
from .assigned import is_float
from .micro_step import MicroStep, Traced, _array
from .replicas import Replicas

_DRAWS = 1 << 20
"""So many random numbers a layer may draw in a step before two devices draw the same."""


class ReplicaStep(MicroStep):
    """The steps of one model on all replicas."""

    def __init__(self, model: Any, trains: bool, replicas: Replicas, scalars: str = "mean") -> None:
        super().__init__(model, trains, scalars)
        self._replicas = replicas

    def split(self, data: Any, size: int) -> Any:
        self._replicas.tell()
        return super().split(data, size)

    def _split(self, data: Any, size: Any) -> Any:
        import tensorflow as tf

        rows = batch.rows(data)
        traced = self._looked_at(data, size)
        devices = self._replicas.devices
        parts = [
            batch.part(data, *self._replicas.ends(rows, number)) for number in range(len(devices))
        ]
        counts = []
        for device, part in zip(devices, parts, strict=True):
            with tf.device(device):
                counts.append(self._totals(traced, part, rows, size, _pieces(part, size)))
        totals = tf.add_n(counts)
        if traced.amounts:
            (totals,) = self._replicas.sum([totals])
        begun, changes, slices = [], [], []
        sums = self._zeros(traced)
        for number, (device, part) in enumerate(zip(devices, parts, strict=True)):
            with tf.device(device):
                sums, more, sparse = self._sums(traced, part, rows, size, totals, number, sums)
                begun.append(sums)
                changes.append(more)
                slices.append(sparse)
            if not self._replicas.in_turn:
                sums = self._zeros(traced)
        ends = begun[-1:] if self._replicas.in_turn else begun
        added = [*zip(*ends, strict=True), *zip(*changes, strict=True)]
        total = self._replicas.sum([tf.add_n(list(one)) for one in added])
        joined = [tf.concat(list(one), 0) for one in zip(*slices, strict=True)]
        counted = self._counted()
        for variable, more in zip(counted, total[len(total) - len(counted) :], strict=True):
            variable.assign(variable + tf.cast(more, variable.dtype))
        ends = total[: len(total) - len(counted)]
        return self._end(traced, data, rows, ends, self._replicas.gathered(joined))

    def _counted(self) -> list[Any]:
        """The variables to which all replicas add something: metrics, and counters of layers, the
        states of their random numbers for example."""
        return [*self.model.metrics_variables, *self._counters()]

    def _counters(self) -> list[Any]:
        return [one for one in self.model.non_trainable_variables if not is_float(one)]

    def _zeros(self, traced: Traced) -> list[Any]:
        """What the loss, the losses of outputs and the gradients are before the first
        micro-batch."""
        import tensorflow as tf

        weights = self.model.trainable_weights
        sums = [tf.zeros([])] * (1 + traced.outputs)
        return sums + [tf.zeros(weights[at].shape, weights[at].dtype) for at in traced.dense]

    def _sums(
        self,
        traced: Traced,
        data: Any,
        rows: Any,
        size: Any,
        totals: Any,
        number: int,
        begun: list[Any],
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """What has `begun`, and what this replica adds to it: to the loss, the losses of outputs
        and gradients. Then what it adds to numbers of layers, metrics and counters; and the sparse
        gradients."""
        import tensorflow as tf
        from keras import StatelessScope

        model, first = self.model, self._replicas.first + number == 0
        weights, metrics = model.trainable_weights, model.metrics_variables
        counters = self._counters()
        floats = [one for one in model.non_trainable_variables if is_float(one)]
        local = [tf.identity(one.value) for one in weights]
        before = [tf.identity(one.value) for one in floats]
        start = [_apart(one, self._replicas.first + number) for one in counters]
        places = {id(one): place for place, one in enumerate(floats)}
        moved = [places[id(one)] for one in traced.moved]
        own, pieces = batch.rows(data), _pieces(data, size)

        def body(at: Any, sums: Any, moves: Any, seen: Any, drawn: Any, arrays: Any) -> Any:
            piece = batch.part(data, at * size, tf.minimum((at + 1) * size, own))
            values = [*zip(weights, local, strict=True), *zip(floats, before, strict=True)]
            values += [*zip(metrics, seen, strict=True), *zip(counters, drawn, strict=True)]
            with StatelessScope(values, collect_losses=True) as scope:
                self._local = local
                try:
                    found, slices = self._micro(Traced(), piece, rows, totals)
                finally:
                    self._local = None
            share = tf.cast(batch.rows(piece), tf.float32) / tf.cast(rows, tf.float32)
            sums = [one + tf.cast(more, one.dtype) for one, more in zip(sums, found, strict=True)]
            news = [scope.get_current_value(floats[place]) for place in moved]
            moves = [
                one + new * tf.cast(share, new.dtype) for one, new in zip(moves, news, strict=True)
            ]
            seen = [scope.get_current_value(one) for one in metrics]
            drawn = [scope.get_current_value(one) for one in counters]
            arrays = [one.write(at, more) for one, more in zip(arrays, slices, strict=True)]
            return at + 1, sums, moves, seen, drawn, arrays

        with tf.control_dependencies(begun):  # A loop begins before all of its values are there.
            first_piece = tf.identity(0)
        _, sums, moves, seen, drawn, arrays = tf.while_loop(
            lambda at, *_: at < pieces,
            body,
            (
                first_piece,
                begun,
                [tf.zeros_like(before[place]) for place in moved],
                [tf.zeros(one.shape, one.dtype) for one in metrics],
                start,
                [_array(kind, shape, pieces) for kind, shape in traced.slices],
            ),
            parallel_iterations=1,
        )
        # All replicas draw as often as the first, which has the most rows.
        drawn = [
            new - old if first else tf.zeros_like(old)
            for new, old in zip(drawn, start, strict=True)
        ]
        return sums, [*moves, *seen, *drawn], [array.concat() for array in arrays]


def _pieces(data: Any, size: Any) -> Any:
    return (batch.rows(data) + size - 1) // size


def _apart(variable: Any, replica: int) -> Any:
    """The value with which this replica begins: states of random numbers are taken apart."""
    import tensorflow as tf

    value = tf.identity(variable.value)
    if not variable.path.endswith("seed_generator_state"):
        return value
    return value + tf.constant([0, replica * _DRAWS], value.dtype)
