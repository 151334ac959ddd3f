"""A batch's inputs from its requests, and each request's outputs from the batch's.

Pure NumPy: no TensorFlow, no sockets. A batch of one request is the request's own arrays, where
they are; of several, one copy into memory that TensorFlow uses as it is.
"""

from typing import Any

import numpy as np

from sublet.channel import tensors
from sublet.channel.codes import invalid_argument
from sublet.channel.tensors import Array
from sublet.errors import ServingError

from .requests import Batch, BatchKind, Part
from .savedmodel_proto import ANY
from .signatures import BY_EXAMPLE


def gather(batch: Batch) -> list[Array]:
    """The inputs of a batch, filled up to a size that is allowed."""
    parts, rows = batch.parts, batch.rows
    if batch.kind.alone:
        return list(parts[0].request.arrays)
    size = batch.queue.options.padded(rows)
    if len(parts) == 1 and size == rows:
        request, start, stop = parts[0]
        if start == 0 and stop == request.rows:
            return list(request.arrays)
        return [array[start:stop] for array in request.arrays]
    count = len(parts[0].request.arrays)
    return [_join([_rows(part, index) for part in parts], rows, size) for index in range(count)]


def scatter(outputs: list[Array], batch: Batch, size: int) -> list[list[Array]]:
    """The outputs of each part. Raises ValueError if they are not one row for each row."""
    if batch.kind.alone:
        return [outputs]
    parts = batch.parts
    if len(parts) == 1 and size == parts[0].request.rows:
        return [outputs]  # All of one request: what comes out is its own, rows or not.
    if not even(outputs, size):
        raise ValueError(
            "the outputs have not as many rows as the inputs, so requests cannot be filled up or "
            "share a batch: serve this model without batching (`alone`)"
        )
    if len(parts) == 1 and size == batch.rows:
        return [outputs]
    found = []
    at = 0
    for _, start, stop in batch.parts:
        end = at + stop - start
        found.append([output[at:end] for output in outputs])
        at = end
    return found


def even(outputs: list[Array], size: int) -> bool:
    """Whether all outputs have this many rows."""
    return all(output.shape[:1] == (size,) for output in outputs)


def assemble(results: list[tuple[int, list[Array]]]) -> list[Array]:
    """The outputs of a split request, from those of its parts and where each began."""
    pieces = [outputs for _, outputs in sorted(results, key=lambda one: one[0])]
    return [np.concatenate(column) for column in zip(*pieces, strict=True)]


def check(kind: BatchKind, bound: Any) -> ServingError | None:
    """Why requests of this kind do not fit the signature. Shapes are TensorFlow's to judge: many
    graphs take more than their signatures say."""
    wanted, names = bound.inputs, kind.inputs
    if set(names) != set(wanted):
        extra = ",".join(sorted(set(names) - set(wanted)))
        missing = ",".join(sorted(set(wanted) - set(names)))
        return invalid_argument(
            f"input size does not match signature: {len(names)}!={len(wanted)} "
            f"len({{{','.join(sorted(names))}}}) != len({{{','.join(sorted(wanted))}}}). "
            f"Sent extra: {{{extra}}}. Missing but required: {{{missing}}}."
        )
    for name, (dtype, _, _) in zip(names, kind.tails, strict=True):
        spec = wanted[name]
        # Examples are strings even where the signature of an old model says otherwise.
        example = dtype == tensors.DT_STRING and bound.method in BY_EXAMPLE
        if spec.dtype not in (dtype, ANY) and not example:
            return invalid_argument(
                f"The input {name!r} has to be {tensors.NAMES.get(spec.dtype, spec.dtype)}, "
                f"but is {tensors.NAMES.get(dtype, dtype)}."
            )
    return None


def _rows(part: Part, index: int) -> Array:
    request, start, stop = part
    array: Array = request.arrays[index]
    return array if stop - start == request.rows else array[start:stop]


def _join(arrays: list[Array], rows: int, size: int) -> Array:
    tail = arrays[0].shape[1:]
    if any(array.shape[1:] != tail for array in arrays):
        tail = tuple(
            max(sizes) for sizes in zip(*(array.shape[1:] for array in arrays), strict=True)
        )
        return _join_padded(arrays, size, tail)
    if arrays[0].dtype.kind == "O":
        joined: Array = np.concatenate(arrays)
        return joined if size == rows else np.concatenate([joined, *[joined[-1:]] * (size - rows)])
    joined = tensors.empty((size, *tail), arrays[0].dtype)
    np.concatenate(arrays, out=joined[:rows])
    if size > rows:
        # A row that is real: zeros may be what a model cannot take.
        joined[rows:] = joined[rows - 1]
    return joined


def _join_padded(arrays: list[Array], size: int, tail: tuple[int, ...]) -> Array:
    """Shorter ones are filled up with zeros, or empty strings."""
    dtype = arrays[0].dtype
    if dtype.kind == "O":
        joined = np.empty((size, *tail), object)
        joined.fill(b"")
    else:
        joined = tensors.empty((size, *tail), dtype)
        joined.fill(0)
    at = 0
    for array in arrays:
        end = at + len(array)
        joined[(slice(at, end), *map(slice, array.shape[1:]))] = array
        at = end
    if at:
        joined[at:] = joined[at - 1]
    return joined
