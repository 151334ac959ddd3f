"""One step of a model with a `train_step` or `test_step` of the program's own, over a batch: as a
whole, or one micro-batch after the other.

The program's step runs for each micro-batch, without the optimizer's step; then once more, of which
only that step, what the program does after it and the values of metrics are computed. What is a
mean over rows counts by the rows of its micro-batch, and what is a sum as it is; `own_checks` finds
out which is which.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from . import batch, loss_parts, step_graph, still_noise
from .loss_parts import Part
from .micro_step import MicroStep, Traced
from .program_step import ProgramStep, Recorded, apply_now, metric_variables

_GRADIENTS = 0
"""The place of the gradients among all that is a mean or a sum."""


class OwnPart(Part):
    """A micro-batch whose losses the program reduces. Keras' own are left as they are: they are
    means over rows like others."""

    def __init__(self, own: Any, whole: Any, sums: Any) -> None:
        super().__init__(own, whole, "mean", opaque=True)
        self.sums = sums
        """1 for what is a sum over rows, 0 for what is a mean."""
        self.numbers: list[Any] = []
        """Those that metrics were given for the whole micro-batch."""

    def averaged(self, values: Any) -> tuple[Any, Any]:
        import tensorflow as tf

        self.numbers.append(values)
        factor = self.factor(len(self.numbers)) / self.share
        return values * tf.cast(factor, values.dtype), self.share

    def divided(self) -> None:
        raise batch.CannotBeCut("a loss is divided by what a mask, or weights, leave of a batch")

    def factor(self, place: int) -> Any:
        """By what a number is multiplied so that those of all micro-batches add up."""
        import tensorflow as tf

        if place >= loss_parts.MOST_TOTALS:
            raise batch.CannotBeCut("a step has too many numbers to be looked at")
        return tf.where(self.sums[place] > 0, 1.0, self.share)


@dataclasses.dataclass
class Seen:
    """What the graph of a micro-batch shows of the program's step."""

    variables: list[Any] = dataclasses.field(default_factory=list)
    """What the optimizer changes."""
    direct: list[str] = dataclasses.field(default_factory=list)
    """The names of what the step returns that comes from the rows, and not from metrics."""
    numbers: int = 0
    seeds: list[Any] = dataclasses.field(default_factory=list)
    draws: bool = False


class OwnStep(MicroStep):
    """The steps of such a model, in training or in evaluation."""

    def __init__(self, model: Any, trains: bool) -> None:
        super().__init__(model, trains)
        self.program = ProgramStep(model, "train_step" if trains else "test_step")
        self.seen = Seen()
        self.sums: Sequence[float] = [0.0] * loss_parts.MOST_TOTALS
        """1 for what is a sum over rows, 0 for what is a mean."""
        self.refused = False
        """Whether the program's step runs as it is."""

    def build(self, piece: Any) -> None:
        """Make all variables, and see whether the step has a form that is known here."""
        if self.model.run_eagerly:
            raise batch.CannotBeCut(f"{self.program.name} runs eagerly")
        self._trace(piece)  # Nothing is computed: nobody knows yet what the step changes.

    def state(self) -> list[Any]:
        known = [*metric_variables(self.model), *self.model.non_trainable_variables]
        known += self.seen.seeds
        return list({id(one): one for one in known}.values())

    def whole(self, data: Any) -> Any:
        if self.refused:
            function = self._function(
                "as it is", self.program.as_it_is, self.spec and [self.spec], jit=True
            )
            return function(data)
        return super().whole(data)

    @property
    def draws(self) -> str:
        return self.program.name if self.seen.draws else ""

    def _weights(self) -> list[Any]:
        return self.seen.variables

    def _whole(self, data: Any) -> Any:
        return self.program.whole(data, self._step_with).logs

    def _step_with(self, optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
        with self._beginning(gradients):
            apply_now(optimizer, gradients, variables)

    def _totals(self, traced: Traced, data: Any, rows: Any, size: Any, pieces: Any) -> Any:
        import tensorflow as tf

        return tf.constant(self.sums, tf.float32)

    def _micro(
        self, traced: Traced, piece: Any, rows: Any, totals: Any
    ) -> tuple[list[Any], list[Any]]:
        import tensorflow as tf

        found, part = self.run(piece, rows, totals)
        seen = self._look_at(found, part, piece)
        traced.moved = found.moved
        traced.outputs = len(seen.direct)
        factor = part.factor(_GRADIENTS)
        sums, slices = [], []
        traced.dense, traced.sparse = [], []  # It is traced twice if that makes variables.
        for place, gradient in enumerate(found.gradients):
            if isinstance(gradient, tf.IndexedSlices):
                traced.sparse.append(place)
                share = tf.cast(factor, gradient.values.dtype)
                slices += [gradient.values * share, gradient.indices]
            elif gradient is not None:
                traced.dense.append(place)
                sums.append(gradient * tf.cast(factor, gradient.dtype))
        traced.slices = [(one.dtype, one.shape[1:]) for one in slices]
        direct = [
            tf.cast(found.logs[name], tf.float32) * part.factor(seen.numbers + 1 + at)
            for at, name in enumerate(seen.direct)
        ]
        self.seen = seen
        return [tf.zeros([]), *direct, *sums], slices

    def run(self, piece: Any, rows: Any, totals: Any) -> tuple[Recorded, OwnPart]:
        """The program's step for a micro-batch, without its end."""
        part = OwnPart(batch.rows(piece), rows, totals)
        with loss_parts.reducing(part):
            found = self.program.part(piece)
        if not isinstance(found.logs, dict):
            raise batch.CannotBeCut(f"{self.program.name} returns no dict of metrics")
        return found, part

    def _look_at(self, found: Recorded, part: OwnPart, piece: Any) -> Seen:
        """What the graph that has just been made shows."""
        import tensorflow as tf

        name = self.program.name
        graph = tf.compat.v1.get_default_graph()
        types = step_graph.operations(graph)
        if step_graph.calls_python(types):
            raise batch.CannotBeCut(f"{name} calls Python in its graph")
        data = {one.name for one in tf.nest.flatten(piece, expand_composites=True)}
        metrics = step_graph.inside(graph, metric_variables(self.model))
        self._check_written(graph, found)
        changed = _changed(graph, found)
        for variable, value in found.later:
            if data & step_graph.ancestors([value]):
                raise batch.CannotBeCut(f"{name} keeps something of the rows in {variable.path}")
        for variable, value in found.averaged:
            if changed & step_graph.ancestors([value]):
                raise batch.CannotBeCut(f"{name} measures by {variable.path} what has just changed")
        direct = []
        for key, value in found.logs.items():
            above = step_graph.ancestors([value])
            if data & above and (metrics & above or changed & above or len(value.shape)):
                raise batch.CannotBeCut(f"{name} returns {key!r}, which is no number of a metric")
            if data & above:
                direct.append(key)
        seeds = found.seeds
        return Seen(
            found.variables, direct, len(part.numbers), seeds, bool(still_noise.draws(types))
        )

    def _check_written(self, graph: Any, found: Recorded) -> None:
        """Raises batch.CannotBeCut if the step changes what is not known here."""
        known = [*metric_variables(self.model), *found.moved, *found.seeds]
        allowed = {id(one.handle) for one in known}
        try:
            written = step_graph.written(graph)
        except (ImportError, AttributeError):
            raise batch.CannotBeCut(
                f"of {self.program.name} it cannot be seen here what it changes"
            ) from None
        if any(id(handle) not in allowed for handle in written):
            raise batch.CannotBeCut(f"{self.program.name} changes what is no variable of Keras")

    def _end(self, traced: Traced, data: Any, rows: Any, sums: list[Any], slices: list[Any]) -> Any:
        seen, direct = self.seen, sums[1 : traced.outputs + 1]
        sums = sums[traced.outputs + 1 :]
        for variable, value in zip(traced.moved, sums[len(traced.dense) :], strict=True):
            variable.assign(value)
        gradients = self._joined(traced, sums, slices)

        def apply(optimizer: Any, _: list[Any], variables: list[Any]) -> None:
            self._step_with(optimizer, gradients, variables)

        logs = dict(self.program.end(batch.part(data, 0, 1), apply).logs)
        return {**logs, **dict(zip(seen.direct, direct, strict=True))}


def _changed(graph: Any, found: Recorded) -> set[str]:
    """The names of tensors that are read, after the optimizer's step, from what it changes."""
    if not found.variables:
        return set()
    handles = step_graph.inside(graph, [*found.variables, *found.optimizer.variables])
    return {
        output.name
        for operation in graph.get_operations()[found.at :]
        if any(one.name in handles for one in operation.inputs)
        for output in operation.outputs
    }
