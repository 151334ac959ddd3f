"""What a user writes in a call of a model, as the arrays of a signature, and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct, convert

from sublet.channel import tensors
from sublet.channel.client_protocol import Answer
from sublet.channel.codes import invalid_argument
from sublet.channel.tensors import Array
from sublet.engine.savedmodel_proto import ANY, Signature, TensorSpec
from sublet.engine.signatures import DEFAULT
from sublet.errors import ServingError


class Signatures(Struct, frozen=True):
    """The signatures of one version of a model, and what of them is needed for each call."""

    all: Mapping[str, Signature]

    @classmethod
    def read(cls, described: Any) -> "Signatures":
        """Read all signatures from an engine's answer."""
        return cls(convert(described, dict[str, Signature]))

    def find(self, name: str | None) -> str:
        """The signature that is meant: the default one, or the only one."""
        if name is None:
            if DEFAULT in self.all:
                return DEFAULT
            if len(self.all) == 1:
                return next(iter(self.all))
            name = DEFAULT
        if name not in self.all:
            raise invalid_argument(
                f"The model has no signature {name!r}, only: {', '.join(sorted(self.all))}."
            )
        return name


def arrange(
    signatures: Signatures,
    args: tuple[Any, ...],
    named: Mapping[str, Any],
    signature: str | None = None,
) -> tuple[str, dict[str, Array]]:
    """The signature, and its inputs: by their names, or one without a name if there is one."""
    name = signatures.find(signature)
    specs = signatures.all[name].inputs
    if args:
        if len(args) > 1 or named or len(specs) != 1:
            raise invalid_argument(
                f"Name the inputs of this model: {', '.join(f'{one}=…' for one in specs)}."
            )
        ((only, spec),) = specs.items()
        return name, {only: fit(only, args[0], spec)}
    if named.keys() != specs.keys():
        raise invalid_argument(
            f"The inputs of this model are {', '.join(specs)}; given were "
            f"{', '.join(named) or 'none'}."
        )
    return name, {one: fit(one, named[one], spec) for one, spec in specs.items()}


def fit(name: str, value: Any, spec: TensorSpec) -> Array:
    """The value as an array of the type that the model takes; only safe conversions are made."""
    if spec.dtype == ANY:
        return _array(name, value)
    wanted = tensors.dtype_of(spec.dtype)
    if type(value) is np.ndarray and value.dtype == wanted:
        return value
    array = _array(name, value)
    if wanted.kind == "O":
        if array.dtype.kind not in "SUO":
            raise _unfit(name, array, spec)
        return array.astype(object)
    # Numbers that have no type of their own take the model's, as in TensorFlow.
    loose = not hasattr(value, "dtype") and array.dtype.kind in "iuf" and wanted.kind in "iufc"
    if loose and (wanted.kind in "fc" or np.array_equal(array, array.astype(wanted))):
        return array.astype(wanted)
    if array.dtype.kind not in "biufc" or not np.can_cast(array.dtype, wanted, "same_kind"):
        raise _unfit(name, array, spec)
    return array.astype(wanted)


def result(answer: Answer) -> Any:
    """What a call gives: the array of the one output, or a dict of several."""
    outputs = answer.outputs
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs


def _array(name: str, value: Any) -> Array:
    try:
        return np.asarray(value)
    except ValueError:
        raise invalid_argument(
            f"The input {name!r} has rows of different lengths, which is no array. "
            "Fill up the shorter ones."
        ) from None


def _unfit(name: str, array: Array, spec: TensorSpec) -> ServingError:
    return invalid_argument(
        f"The input {name!r} has to be {tensors.NAMES.get(spec.dtype, spec.dtype)}; {array.dtype} "
        "cannot be made that without loss. Convert it before."
    )
