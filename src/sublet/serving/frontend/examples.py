"""tf.Example in, classes and numbers out: what Classify and Regress of REST and gRPC share.

An example is only ever written or passed on here; the model parses it. Texts and codes are those
of TensorFlow Serving.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sublet.channel.codes import Code, invalid_argument
from sublet.engine.savedmodel_proto import Signature
from sublet.engine.signatures import DEFAULT
from sublet.errors import ServingError
from sublet.serving.dtypes import BY_NUMPY
from sublet.serving.frontend.checks import shape_text
from sublet.serving.frontend.model_backend import Arrays
from sublet.serving.frontend.proto import message
from sublet.serving.frontend.proto.tensors import signature_def

CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"

INPUTS = "inputs"
CLASSES = "classes"
SCORES = "scores"
OUTPUTS = "outputs"

_LARGEST_CONTEXTS = 1 << 28
"""Bytes of a context and its copies: few bytes must not become many."""

Values = Sequence[float] | Sequence[int] | Sequence[bytes]


def serialize(features: Mapping[str, Values]) -> bytes:
    """A tf.Example of these features; all values of a feature are of one type."""
    example = message("tensorflow.Example")()
    for name, values in features.items():
        feature = example.features.feature[name]
        kinds = {type(value) for value in values}
        if kinds <= {bytes}:
            feature.bytes_list.value.extend(values)
        elif kinds == {int}:
            try:
                feature.int64_list.value.extend(values)
            except ValueError as wrong:
                raise invalid_argument(f'Feature "{name}" has a number beyond 64 bits.') from wrong
        elif kinds <= {float, int}:
            feature.float_list.value.extend(values)
        else:
            raise invalid_argument(
                f'Feature "{name}" mixes types. Give only numbers, or only strings of bytes.'
            )
    return bytes(example.SerializeToString())


def from_input(given: Any) -> list[bytes]:
    """The serialized examples of an `Input` message, each merged with its context."""
    kind = given.WhichOneof("kind")
    examples: list[bytes] = []
    if kind == "example_list":
        examples = list(given.example_list.examples)
    elif kind == "example_list_with_context":
        rows = given.example_list_with_context
        examples = with_context(rows.context, rows.examples)
    if not examples:
        raise invalid_argument("Input is empty.")
    return examples


def with_context(context: bytes, examples: Sequence[bytes]) -> list[bytes]:
    """Each example with the features of the context, too. Bounded: it is repeated for each."""
    size = len(context) * len(examples)
    if size > _LARGEST_CONTEXTS:
        raise invalid_argument(
            f"A context of {len(context)} bytes for each of {len(examples)} examples makes {size} "
            f"bytes; at most {_LARGEST_CONTEXTS} are taken. Send fewer examples in a request."
        )
    # Two messages one after another are one message that has the features of both.
    return [context + each for each in examples]


def find(signatures: Mapping[str, Signature], name: str, method: str) -> str:
    """The name of the signature that a request by this method means. Refuses one that cannot do
    it."""
    name = name or DEFAULT
    signature = signatures.get(name)
    if signature is None:
        raise invalid_argument(f"No signature was found with the name: {name}")
    check(signature, method)
    return name


def check(signature: Signature, method: str) -> None:
    """Refuse a signature that cannot classify examples, or give a number for each."""
    if len(signature.inputs) != 1:
        raise invalid_argument("Expected one input Tensor.")
    (_check_classifying if method == CLASSIFY else _check_regressing)(signature)


def _check_classifying(signature: Signature) -> None:
    outputs = signature.outputs
    if len(outputs) not in (1, 2):
        raise invalid_argument(f"Expected one or two output Tensors, found {len(outputs)}")
    if INPUTS not in signature.inputs:
        raise _unfit("No classification inputs found in SignatureDef: ", signature)
    if CLASSES not in outputs and SCORES not in outputs:
        raise _unfit(
            "Expected classification signature outputs to contain at least one of "
            f'"{CLASSES}" or "{SCORES}". Signature was: ',
            signature,
        )


def _check_regressing(signature: Signature) -> None:
    if len(signature.outputs) != 1:
        raise invalid_argument("Expected one output Tensor.")
    if INPUTS not in signature.inputs:
        raise _unfit("No regression inputs found in SignatureDef: ", signature)
    if OUTPUTS not in signature.outputs:
        raise _unfit("No regression outputs found in SignatureDef: ", signature)


def classifications(outputs: Arrays, rows: int | None = None) -> list[list[tuple[str, float]]]:
    """Label and score of each class, for each example; a missing one is empty or zero. `rows` is
    the number of examples, if the outputs are to be held against it."""
    classes, scores = outputs.get(CLASSES), outputs.get(SCORES)
    for name, array, kind in ((CLASSES, classes, "DT_STRING"), (SCORES, scores, "DT_FLOAT")):
        if array is None:
            continue
        if array.ndim != 2:
            raise invalid_argument(
                f"Expected Tensor shape: [batch_size num_classes] but got {shape_text(array.shape)}"
            )
        if _kind(array) != kind:
            raise invalid_argument(f"Expected {name} Tensor of {kind}. Got: {_kind(array)}")
        if rows is not None and array.shape[0] != rows:
            raise invalid_argument(
                f"Expected {name} output batch size of {rows}. Got: {array.shape[0]}"
            )
    if classes is None and scores is None:
        raise invalid_argument(f'The model gave neither "{CLASSES}" nor "{SCORES}".')
    if classes is None:
        return [[("", score) for score in row] for row in _floats(scores)]
    if scores is None:
        return [[(_label(label), 0.0) for label in row] for row in classes.tolist()]
    if classes.shape[1] != scores.shape[1]:
        raise invalid_argument(
            "Tensors class and score should match in dim_size(1). Got "
            f"{classes.shape[1]} vs. {scores.shape[1]}"
        )
    return [
        [(_label(label), score) for label, score in zip(*row, strict=True)]
        for row in zip(classes.tolist(), _floats(scores), strict=True)
    ]


def regressions(outputs: Arrays, rows: int | None = None) -> list[float]:
    """One number for each example. `rows` is as for `classifications`."""
    array = outputs.get(OUTPUTS)
    if array is None:
        raise invalid_argument(f"Could not find output tensor '{OUTPUTS}'")
    if array.ndim != 1 and not (array.ndim == 2 and array.shape[1] == 1):
        raise invalid_argument(
            "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got "
            + shape_text(array.shape)
        )
    if rows is not None and array.shape[0] != rows:
        raise invalid_argument(
            f"Input batch size did not match output batch size: {rows} vs. {array.shape[0]}"
        )
    if _kind(array) != "DT_FLOAT":
        raise invalid_argument(f"Expected output Tensor of DT_FLOAT.  Got: {_kind(array)}")
    values: list[float] = array.reshape(-1).tolist()
    return values


def _floats(scores: Any) -> list[list[float]]:
    rows: list[list[float]] = scores.tolist()
    return rows


def _label(label: Any) -> str:
    """A label as text: bytes that are no UTF-8 must not stop an answer."""
    return label.decode("utf-8", "replace") if isinstance(label, bytes) else str(label)


def _kind(array: np.ndarray[Any, Any]) -> str:
    kind = BY_NUMPY.get(array.dtype)
    return str(array.dtype) if kind is None else kind.name


def _unfit(text: str, signature: Signature) -> ServingError:
    return ServingError(f"{text}{signature_def(signature)}", Code.FAILED_PRECONDITION)
