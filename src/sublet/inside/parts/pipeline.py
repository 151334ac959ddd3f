"""A batch through the parts of a model, in micro-batches: a graph that TensorFlow runs on all
devices at the same time.

    part 0   forward 0   forward 1   forward 2                  …   backward 1   backward 0
    part 1               forward 0   forward 1   forward 2, loss, backward 2   backward 1   …

A part computes one micro-batch after the other. Nothing else is said about the order: it begins
when its inputs are there, while the part before it computes the next micro-batch.

The loss is computed once, of the whole batch. So it may be any function of the outputs: weights,
masks, and losses that compare rows need no thought.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..training import batch
from ..training.assigned import assigned, is_float
from .calls import Graph
from .part import Part

Values = dict[int, Any]
"""Tensors by their numbers in the graph; the logits of an output by `_logits` of its number."""


@dataclasses.dataclass(frozen=True)
class Passage:
    """A micro-batch that has gone through a part, and what its way back needs."""

    part: Part
    inputs: Values
    outputs: Values
    losses: list[Any]
    """What layers have added to the loss."""
    tape: Any
    before: list[tuple[Any, Any]]
    """What the variables were that the layers have changed meanwhile."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """A micro-batch that has gone through all parts."""

    rows: Any
    share: Any
    """Its part of the rows of the batch."""
    passages: list[Passage]
    values: Values


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch that has gone through all parts."""

    pieces: list[Piece]
    weights: list[Passage]
    """The losses of the weights of each part, which do not depend on rows."""


class Pipeline:
    """The parts of a model, and how batches go through them."""

    def __init__(self, graph: Graph, parts: tuple[Part, ...], pieces: int, recompute: bool) -> None:
        self.graph = graph
        self.parts = parts
        self.pieces = pieces
        """How many micro-batches a batch has."""
        self.recompute = recompute
        """Whether a part drops what it has computed, and computes it again for the way back."""
        self.sums = False
        """Whether what layers add to the loss is a sum over rows; else it is a mean."""
        self.added: list[Any] | None = None
        """What they add to the loss that is computed now."""

    def whole(self, inputs: Any, training: bool) -> Any:
        """What the model puts out for a batch, without micro-batches."""
        values = self.graph.flat(inputs)
        for part in self.parts:
            with on(part):
                values.update(self._passage(part, values, training, None).outputs)
        return self.graph.packed(values)

    def forward(self, inputs: Any, training: bool) -> Batch:
        """A batch through all parts."""
        import tensorflow as tf

        given = self.graph.flat(inputs)
        rows = batch.rows(list(given.values()))
        statistics = [_Statistics(part) for part in self.parts]
        ready: list[Any] = [None] * len(self.parts)
        pieces = []
        for number in range(self.pieces):
            begin, end = (place * rows // self.pieces for place in (number, number + 1))
            # With no row at all some layers fail. One that is too many is dropped at the end.
            values = batch.part(given, begin, tf.maximum(end, begin + 1))
            share = tf.cast(end - begin, tf.float32) / tf.cast(rows, tf.float32)
            passages = []
            for place, part in enumerate(self.parts):
                with on(part), _after(ready[place]), statistics[place].counted(share):
                    tape = tf.GradientTape() if training and not self.recompute else None
                    passage = self._passage(part, values, training, tape)
                    ready[place] = _done(passage.outputs.values())
                values.update(passage.outputs)
                passages.append(passage)
            pieces.append(Piece(end - begin, share, passages, values))
        for part, one in zip(self.parts, statistics, strict=True):
            with on(part):
                one.put_back()
        return Batch(pieces, [_weights_of(part) for part in self.parts])

    def outputs(self, passed: Batch) -> Any:
        """What the model puts out for the whole batch."""
        numbers = self.graph.outputs
        return self.graph.packed({number: _joined(number, passed.pieces) for number in numbers})

    def losses(self, passed: Batch) -> list[Any]:
        """What layers add to the loss of the batch."""
        of_rows = [
            loss * _like(piece.rows > 0 if self.sums else piece.share, loss)
            for piece in passed.pieces
            for passage in piece.passages
            for loss in passage.losses
        ]
        return of_rows + [loss for passage in passed.weights for loss in passage.losses]

    def ends(self, passed: Batch) -> list[Any]:
        """All tensors that the loss of the batch is computed of."""
        outputs = [one.values[key] for one in passed.pieces for key in self._judged(one)]
        passages = [one for piece in passed.pieces for one in piece.passages]
        return outputs + [loss for one in passages + passed.weights for loss in one.losses]

    def _judged(self, piece: Piece) -> list[int]:
        """The outputs, and the logits of those that have some."""
        logits = map(_logits, self.graph.outputs)
        return [*self.graph.outputs, *(number for number in logits if number in piece.values)]

    def backward(self, passed: Batch, gradients: list[Any]) -> Gradients:
        """The gradients of the weights, from those of the `ends`."""
        given = iter(gradients)
        arrived: list[dict[int, list[Any]]] = [
            {number: [next(given)] for number in self._judged(one)} for one in passed.pieces
        ]
        of_losses = [
            [[next(given) for _ in passage.losses] for passage in piece.passages]
            for piece in passed.pieces
        ]
        sums = Gradients()
        for passage in passed.weights:
            with on(passage.part):
                self._back(passage, {}, [next(given) for _ in passage.losses], sums)
        ready: list[Any] = [None] * len(self.parts)
        for number in reversed(range(len(passed.pieces))):
            for place in reversed(range(len(self.parts))):
                passage = passed.pieces[number].passages[place]
                with on(passage.part), _after(ready[place]):
                    if self.recompute:
                        passage = self._again(passage)
                    found = self._back(passage, arrived[number], of_losses[number][place], sums)
                    ready[place] = _done(found)
        return sums

    def _back(
        self, passage: Passage, arrived: dict[int, list[Any]], of_losses: list[Any], sums: Gradients
    ) -> list[Any]:
        """One micro-batch back through one part. Returns all gradients that were found."""
        ends: list[tuple[Any, Any]] = [
            (tensor, _sum(arrived.get(number, ()))) for number, tensor in passage.outputs.items()
        ]
        ends += zip(passage.losses, of_losses, strict=True)
        ends = [(end, gradient) for end, gradient in ends if gradient is not None]
        if not ends:
            return []
        weights = passage.part.trainable_weights
        inputs = {
            number: tensor
            for number, tensor in passage.inputs.items()
            if self._returns(number, tensor)
        }
        found = passage.tape.gradient(
            [end for end, _ in ends],
            [*inputs.values(), *weights],
            output_gradients=[gradient for _, gradient in ends],
        )
        for number, gradient in zip(inputs, found, strict=False):
            arrived.setdefault(number, []).append(gradient)
        sums.add(weights, found[len(inputs) :])
        return [one for one in found if one is not None]

    def _again(self, passage: Passage) -> Passage:
        """The same passage, with a tape. Random numbers are the same; what layers keep stays."""
        import tensorflow as tf

        now = [(variable, _read(variable)) for variable, _ in passage.before]
        _put_back(passage.before)
        again = self._passage(passage.part, passage.inputs, True, tf.GradientTape())
        _put_back(now)
        return again

    def _passage(self, part: Part, values: Mapping[int, Any], training: bool, tape: Any) -> Passage:
        from ..tensor_notes import logits_of

        inputs = {number: _copy(values[number]) for number in part.inputs}
        kept = part.non_trainable_variables if training and self.recompute else []
        before = [(one, _read(one)) for one in kept]
        with tape or contextlib.nullcontext(), assigned(kept) as changed:
            if tape is not None:
                tape.watch([one for number, one in inputs.items() if self._returns(number, one)])
            found, losses = part.run(inputs, training)
        outputs = dict(zip(part.outputs, found, strict=True))
        for number in set(self.graph.outputs).intersection(outputs):
            for one in logits_of(outputs[number]).values():
                outputs[_logits(number)] = one
        touched = set(map(id, changed))
        before = [(one, value) for one, value in before if id(one) in touched]
        return Passage(part, inputs, outputs, losses, tape, before)

    def _returns(self, number: int, tensor: Any) -> bool:
        """Whether an input of a part has a gradient that an earlier part is waiting for."""
        return number not in self.graph.inputs and tensor.dtype.is_floating


def _weights_of(part: Part) -> Passage:
    """The losses of a part's weights."""
    import tensorflow as tf

    with on(part), tf.GradientTape() as tape:
        losses = part.regularisation()
    return Passage(part, {}, {}, losses, tape, [])


class Gradients:
    """The sums of the gradients of weights over all micro-batches."""

    def __init__(self) -> None:
        self._dense: dict[int, Any] = {}
        self._sparse: dict[int, list[Any]] = {}
        """Those of the rows of embeddings: Keras' optimizers do not treat the two alike."""

    def add(self, weights: Iterable[Any], gradients: Iterable[Any]) -> None:
        """Add these, on the device of this moment."""
        import tensorflow as tf

        for weight, gradient in zip(weights, gradients, strict=True):
            key = id(weight)
            if isinstance(gradient, tf.IndexedSlices):
                self._sparse.setdefault(key, []).append(gradient)
            elif gradient is not None:
                self._dense[key] = gradient + self._dense[key] if key in self._dense else gradient

    def of(self, weight: Any) -> Any:
        """The gradient of the whole batch; None without one."""
        import tensorflow as tf

        slices, dense = self._sparse.get(id(weight)), self._dense.get(id(weight))
        if not slices:
            return dense
        with tf.device(weight.value.device):
            found = tf.IndexedSlices(
                tf.concat([one.values for one in slices], 0),
                tf.concat([one.indices for one in slices], 0),
                tf.constant(tuple(weight.shape)),
            )
            return found if dense is None else dense + tf.convert_to_tensor(found)


class _Statistics:
    """Numbers that the layers of a part keep, as BatchNormalization does: they begin each
    micro-batch as they were before the batch, and are the mean over all afterwards."""

    def __init__(self, part: Part) -> None:
        self._known = list(filter(is_float, part.non_trainable_variables))
        with on(part):
            self._before = {id(one): _read(one) for one in self._known}
        self._sums: dict[int, tuple[Any, Any]] = {}

    @contextlib.contextmanager
    def counted(self, share: Any) -> Iterator[None]:
        """In the body a micro-batch is computed that is such a part of the batch."""
        _put_back((variable, self._before[key]) for key, (variable, _) in self._sums.items())
        with assigned(self._known) as moved:
            yield
        for variable in moved:
            value = _read(variable) * _like(share, variable)
            _, so_far = self._sums.get(id(variable), (variable, None))
            self._sums[id(variable)] = variable, value if so_far is None else so_far + value

    def put_back(self) -> None:
        """Have the layers keep the means."""
        _put_back(self._sums.values())


def on(part: Part) -> Any:
    """In the body TensorFlow computes on the part's device."""
    import tensorflow as tf

    return tf.device(part.device)


def _after(ready: Any) -> Any:
    """In the body nothing is computed before this is."""
    import tensorflow as tf

    return contextlib.nullcontext() if ready is None else tf.control_dependencies([ready])


def _done(tensors: Iterable[Any]) -> Any:
    """What is ready when all of these are; None where they are there already."""
    import tensorflow as tf

    if tf.executing_eagerly():
        return None
    return tf.group(*tf.nest.flatten(list(tensors), expand_composites=True))


def _copy(tensor: Any) -> Any:
    """The tensor and its mask on the device of this moment."""
    import tensorflow as tf
    from keras.src import backend

    copy, mask = tf.identity(tensor), backend.get_keras_mask(tensor)
    if mask is not None:
        backend.set_keras_mask(copy, tf.identity(mask))
    return copy


def _logits(number: int) -> int:
    """The number of what a softmax or sigmoid made this output of. Keras' losses take it in place
    of the probabilities, so it has a gradient of its own."""
    return -1 - number


def _joined(number: int, pieces: list[Piece]) -> Any:
    """The rows of all micro-batches, with their masks and logits."""
    import tensorflow as tf
    from keras.src import backend

    from ..tensor_notes import logits_of, with_logits

    found = [piece.values[number] for piece in pieces]
    masks = [backend.get_keras_mask(one) for one in found]
    counts = [piece.rows for piece in pieces]

    def together(tensors: Iterable[Any]) -> Any:
        return tf.concat([one[:rows] for one, rows in zip(tensors, counts, strict=True)], 0)

    joined = together(found)
    if all(mask is not None for mask in masks):
        backend.set_keras_mask(joined, together(masks))
    logits = {
        kind: together(piece.values[_logits(number)] for piece in pieces)
        for kind in logits_of(found[0])
    }
    return with_logits(joined, logits)


def _sum(gradients: Iterable[Any]) -> Any:
    import tensorflow as tf

    found = [tf.convert_to_tensor(one) for one in gradients if one is not None]
    return tf.add_n(found) if found else None


def _read(variable: Any) -> Any:
    import tensorflow as tf

    return tf.convert_to_tensor(variable)


def _put_back(values: Iterable[tuple[Any, Any]]) -> None:
    for variable, value in values:
        variable.assign(value)


def _like(factor: Any, tensor: Any) -> Any:
    import tensorflow as tf

    return tf.cast(factor, tensor.dtype)
