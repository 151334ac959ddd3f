"""What TensorFlow Serving's API tells of a model: the state of its versions, and its signatures."""

from collections.abc import Mapping
from typing import Any

from sublet.channel.codes import Code
from sublet.serving.catalogue import Catalogue, Signature, State, TensorSpec, Version
from sublet.serving.dtypes import KINDS
from sublet.serving.frontend.rest import writing
from sublet.serving.frontend.rest.messages import Reply


def status(catalogue: Catalogue, name: str, number: int | None, label: str | None) -> Reply:
    """The state of one version, or of all, the newest first."""
    told = [_version_status(version) for version in catalogue.known(name, number, label)]
    return Reply(200, writing.encode({"model_version_status": told}))


def metadata(version: Version, signatures: Mapping[str, Signature]) -> Reply:
    """The signatures of a version."""
    spec = {"name": version.model, "signature_name": "", "version": str(version.number)}
    told = {name: _signature(signature) for name, signature in signatures.items()}
    body = {"model_spec": spec, "metadata": {"signature_def": {"signature_def": told}}}
    return Reply(200, writing.encode(body))


def _signature(signature: Signature) -> dict[str, Any]:
    return {
        "inputs": {name: _tensor(spec) for name, spec in signature.inputs.items()},
        "outputs": {name: _tensor(spec) for name, spec in signature.outputs.items()},
        "method_name": signature.method,
        "defaults": {},
    }


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    dims = [{"size": str(size), "name": ""} for size in spec.shape or ()]
    return {
        "dtype": KINDS[spec.dtype].name if spec.dtype in KINDS else str(spec.dtype),
        "tensor_shape": {"dim": dims, "unknown_rank": spec.shape is None},
        "name": spec.name,
    }


def _version_status(version: Version) -> dict[str, Any]:
    where = {"devices": list(version.devices)} if version.devices else {}
    return {
        "version": str(version.number),
        "state": State(version.state).name,
        "status": {"error_code": Code(version.code).name, "error_message": version.error},
        **where,
    }
