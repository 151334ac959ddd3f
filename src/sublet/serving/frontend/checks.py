"""What a request must be for a signature: its names, types, shapes and wanted outputs.

REST and gRPC share these checks. The texts are those of TensorFlow Serving where it has one.
"""

from collections.abc import Collection, Mapping, Sequence
from math import prod

from sublet.channel.codes import Code, invalid_argument
from sublet.engine.savedmodel_proto import Signature
from sublet.engine.signatures import DEFAULT
from sublet.errors import ServingError
from sublet.serving.dtypes import BY_NUMPY, word
from sublet.serving.frontend.model_backend import Arrays


def check_signature(
    signatures: Mapping[str, Signature], name: str, *, rest: bool = False
) -> tuple[str, Signature]:
    """The signature that a Predict means and its name; REST says it in other words than gRPC."""
    name = name or DEFAULT
    signature = signatures.get(name)
    if signature is not None:
        return name, signature
    if rest:
        raise invalid_argument(f'Serving signature name: "{name}" not found in signature def')
    raise ServingError(f'Serving signature key "{name}" not found.', Code.FAILED_PRECONDITION)


def check_inputs(signature: Signature, inputs: Arrays) -> None:
    """Refuse inputs that the signature does not take."""
    specs = signature.inputs
    if inputs.keys() != specs.keys():
        check_names(signature, inputs.keys())
    for index, (name, spec) in enumerate(specs.items()):
        array = inputs[name]
        kind = BY_NUMPY.get(array.dtype)
        if kind is None or kind.number != spec.dtype:
            given = str(array.dtype) if kind is None else kind.word
            raise invalid_argument(
                f"Expects arg[{index}] to be {word(spec.dtype)} but {given} is provided"
                f' (input "{name}")'
            )
        shape = array.shape
        if spec.shape is not None and shape[1:] != spec.shape[1:] and not _fits(shape, spec.shape):
            raise invalid_argument(
                f'Input "{name}" has shape {shape_text(shape)}, but the signature takes '
                f"{shape_text(spec.shape)}. Send rows of that shape."
            )


def check_names(signature: Signature, names: Collection[str]) -> None:
    """Refuse a set of inputs that is not the signature's."""
    sent, wanted = set(names), set(signature.inputs)
    if len(sent) != len(wanted):
        raise invalid_argument(
            f"input size does not match signature: {len(sent)}!={len(wanted)} "
            f"len({_set(sent)}) != len({_set(wanted)}). Sent extra: {_set(sent - wanted)}. "
            f"Missing but required: {_set(wanted - sent)}."
        )
    for alias in sorted(wanted - sent):
        raise invalid_argument(
            f"Signature input alias: {alias}(feed name: {signature.inputs[alias].name}) not found "
            f"in request and no default value provided. Inputs expected to be in the request "
            f"{_set(sent)}, or default input alias set: "
        )


def check_outputs(signature: Signature, wanted: Sequence[str]) -> tuple[str, ...]:
    """The outputs of an output_filter; refuses unknown ones and repeated ones."""
    seen: set[str] = set()
    for alias in wanted:
        if alias not in signature.outputs:
            raise invalid_argument(
                f"output tensor alias not found in signature: {alias} Outputs expected to be in "
                f"the set {_set(signature.outputs)}."
            )
        if alias in seen:
            raise invalid_argument(f"duplicate output tensor alias: {alias}")
        seen.add(alias)
    return tuple(wanted)


def _fits(given: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether rows of one shape can be meant for the other. The first dimension is the batch's.

    TensorFlow Serving feeds a graph without a look at its shapes, and clients count on that: a
    list of numbers is sent to a signature of shape [-1, 1]. So another rank is taken if a row has
    the same number of values.
    """
    if len(given) == len(wanted):
        return all(w in (-1, g) for g, w in zip(given[1:], wanted[1:], strict=True))
    row = wanted[1:]
    return -1 not in row and prod(row) == prod(given[1:])


def _set(names: Collection[str]) -> str:
    return "{" + ",".join(sorted(names)) + "}"


def shape_text(shape: Sequence[int]) -> str:
    """A shape as TensorFlow writes it."""
    return "[" + ",".join(map(str, shape)) + "]"
