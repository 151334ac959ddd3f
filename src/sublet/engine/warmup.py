"""Warm-up: requests that a model brings along, run before anybody else's.

Owns reading `assets.extra/tf_serving_warmup_requests`, a TFRecord file of PredictionLog messages,
and rows for batch sizes that will come. TensorFlow reads the records, and with that checks them;
the few messages around the tensors are taken apart here, as TensorFlow Serving's are not installed.

    PredictionLog 2: classify_log, 3: regress_log   ─ 1: request ─ 1: model_spec, 2: input
                  4: multi_inference_log            ─ 1: request ─ 1: tasks, 2: input
                  6: predict_log, 7: …streamed_log  ─ 1: request ─ 1: model_spec, 2: inputs
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sublet.channel.codes import invalid_argument
from sublet.channel.tensors import Array
from sublet.engine.signatures import DEFAULT, Bound
from sublet.errors import ServingError
from sublet.protobuf_fields import fields, messages

RECORDS = os.path.join("assets.extra", "tf_serving_warmup_requests")
MOST = 1000
"""As in TensorFlow Serving: whoever has more records has mistaken the file."""
_EXAMPLES, _MULTI, _PREDICT = (2, 3), 4, (6, 7)


class WarmupRequest(NamedTuple):
    """One recorded call. `inputs` has one entry without a name where it is a list of examples."""

    signature: str
    inputs: dict[str, Array]


def warm_up(path: str, signatures: Mapping[str, Bound], rows: Sequence[int] = ()) -> None:
    """Run what the model brought along, then one batch of each size in `rows`. A record that fails
    makes the model unfit to be served, as in TensorFlow Serving; a made-up batch does not."""
    example: dict[str, dict[str, Array]] = {}
    for request in read(os.path.join(path, RECORDS)):
        bound = signatures.get(request.signature)
        if bound is None:
            raise _bad(path, f"it asks for the signature {request.signature!r}, which is not there")
        inputs = request.inputs
        if "" in inputs and len(bound.inputs) == 1:
            inputs = {next(iter(bound.inputs)): inputs[""]}
        if inputs.keys() != bound.inputs.keys():
            raise _bad(path, f"{request.signature} wants {', '.join(bound.inputs)}")
        bound.call(inputs)
        example[request.signature] = dict(inputs)
    for name, bound in signatures.items():
        given = (example.get(name) or made_up(bound)) if rows and bound.batchable else None
        if given is None or any(not array.shape or not len(array) for array in given.values()):
            continue
        for size in rows:
            # Zeros may not be what the model was made for; the first request will tell more.
            with contextlib.suppress(Exception):
                bound.call(
                    {key: np.resize(one, (size, *one.shape[1:])) for key, one in given.items()}
                )


def made_up(bound: Bound) -> dict[str, Array] | None:
    """One row of zeros, where all that is needed for it is known."""
    from tensorflow import dtypes

    inputs = {}
    for name, tensor in bound.inputs.items():
        if tensor.shape is None or -1 in tensor.shape[1:]:
            return None
        kind = dtypes.as_dtype(tensor.dtype).as_numpy_dtype
        inputs[name] = np.zeros((1, *tensor.shape[1:]), kind)
        if inputs[name].dtype == object:
            return None
    return inputs


def read(path: str) -> Iterator[WarmupRequest]:
    """The recorded requests; none if there is no file."""
    if not os.path.exists(path):
        return
    from google.protobuf.message import DecodeError
    from tensorflow.errors import DataLossError
    from tensorflow.python.lib.io._pywrap_record_io import RecordIterator

    try:
        for number, record in enumerate(RecordIterator(path, "")):
            if number >= MOST:
                raise _bad(path, f"it has more than {MOST} records")
            yield from parse(memoryview(record))
    except DataLossError as wrong:
        raise _bad(path, f"a record is damaged ({wrong})") from None
    except (ValueError, DecodeError) as wrong:
        raise _bad(path, f"a record is no PredictionLog: {wrong}") from None


def parse(log: memoryview) -> Iterator[WarmupRequest]:
    for kind, body in fields(log):
        if not isinstance(body, memoryview):
            continue
        for request in messages(body, 1):
            if kind in _PREDICT:
                yield WarmupRequest(_signature(messages(request, 1)), _tensors(request))
            elif kind in _EXAMPLES:
                yield WarmupRequest(_signature(messages(request, 1)), {"": _examples(request)})
            elif kind == _MULTI:
                for task in messages(request, 1):
                    yield WarmupRequest(_signature(messages(task, 1)), {"": _examples(request)})


def _signature(specs: Iterator[memoryview]) -> str:
    """Field 3 of a ModelSpec."""
    names = [str(name, "utf-8") for spec in specs for name in messages(spec, 3)]
    return (names[-1] if names else "") or DEFAULT


def _tensors(request: memoryview) -> dict[str, Array]:
    import tensorflow as tf
    from tensorflow.core.framework.tensor_pb2 import TensorProto

    inputs = {}
    for entry in messages(request, 2):
        (name,) = (str(key, "utf-8") for key in messages(entry, 1))
        (tensor,) = messages(entry, 2)
        inputs[name] = tf.make_ndarray(TensorProto.FromString(bytes(tensor)))
    return inputs


def _examples(request: memoryview) -> Array:
    """The serialized examples of an Input. Context and example are joined: whoever parses them
    merges both."""
    found: list[bytes] = []
    for given in messages(request, 2):
        for plain in messages(given, 1):
            found += map(bytes, messages(plain, 1))
        for shared in messages(given, 2):
            context = b"".join(map(bytes, messages(shared, 2)))
            found += [context + bytes(one) for one in messages(shared, 1)]
    return np.array(found, dtype=object)


def _bad(path: str, why: str) -> ServingError:
    return invalid_argument(
        f"The warm-up requests of {path} cannot be used: {why}. "
        "Record them again, or leave them out: `sublet serve --enable_model_warmup=false`, or "
        "warm_up=False for an Engine."
    )
