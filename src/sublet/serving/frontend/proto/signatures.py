"""The signatures of a model as TensorFlow's SignatureDef."""

from collections.abc import Mapping
from typing import Any

from sublet.serving.catalogue import Signature, TensorSpec
from sublet.serving.frontend.proto import message, serving


def signature_def(signature: Signature) -> Any:
    """The SignatureDef of one signature."""
    return _fill(message("tensorflow.SignatureDef")(), signature)


def signature_defs(signatures: Mapping[str, Signature]) -> Any:
    """The SignatureDefMap of a model."""
    filled = serving("SignatureDefMap")()
    for name, signature in signatures.items():
        _fill(filled.signature_def[name], signature)
    return filled


def _fill(filled: Any, signature: Signature) -> Any:
    filled.method_name = signature.method
    for name, spec in signature.inputs.items():
        _info(filled.inputs[name], spec)
    for name, spec in signature.outputs.items():
        _info(filled.outputs[name], spec)
    return filled


def _info(info: Any, spec: TensorSpec) -> None:
    info.name = spec.name
    info.dtype = spec.dtype
    if spec.shape is None:
        info.tensor_shape.unknown_rank = True
    else:
        info.tensor_shape.SetInParent()
        for size in spec.shape:
            info.tensor_shape.dim.add(size=size)
