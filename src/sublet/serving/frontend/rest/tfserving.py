"""TensorFlow Serving's REST API: predict, classify, regress, status and metadata of models."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import numpy as np

from sublet.channel.client_protocol import Answer
from sublet.channel.codes import Code, invalid_argument
from sublet.channel.tensors import Array
from sublet.engine.savedmodel_proto import Signature, TensorSpec
from sublet.errors import ServingError
from sublet.serving.catalogue import State, Version
from sublet.serving.dtypes import DATA_TYPES
from sublet.serving.frontend import checks, examples
from sublet.serving.frontend.model_backend import ModelBackend
from sublet.serving.frontend.rest import documents, forms, writing
from sublet.serving.frontend.rest.exchange import Answerer, ModelCalls, Pending
from sublet.serving.frontend.rest.messages import Body, Reply, Request

_CALL = re.compile(
    r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?:(classify|regress|predict)",
    re.IGNORECASE | re.ASCII,
)
_LOOK = re.compile(
    r"/v1/models(?:/([^/:]+))?(?:/versions/(\d+)|/labels/([^/:]+))?(?:/(metadata))?",
    re.IGNORECASE | re.ASCII,
)


class Target(NamedTuple):
    """The model that a path names."""

    name: str
    version: int | None = None
    label: str | None = None


class TfServingApi:
    """The API. What is wrong with a request is said in TensorFlow Serving's words."""

    def __init__(self, backend: ModelBackend, calls: ModelCalls) -> None:
        self._backend = backend
        self._calls = calls

    def find(self, method: str, path: str) -> Answerer:
        """What answers requests of this method and path. Raises ServingError."""
        if method == "POST" and (match := _CALL.fullmatch(path)):
            target = _target(*match.groups()[:3])
            # The path is matched in any case, but what is asked for only in this one.
            if match[4] == "predict":
                return partial(self._counted, "Predict", target, self._predict)
            if match[4] in ("classify", "regress"):
                api = match[4].title()
                return partial(self._counted, api, target, partial(self._by_example, api))
        elif method in ("GET", "HEAD") and (match := _LOOK.fullmatch(path)):
            if match[1] is None:
                raise invalid_argument("Missing model name in request.")
            target = _target(*match.groups()[:3])
            return partial(self._metadata if match[4] == "metadata" else self._status, target)
        raise invalid_argument(f"Malformed request: {method} {path}")

    def _counted(
        self,
        api: str,
        target: Target,
        answer: Callable[[Target, Request], Pending],
        request: Request,
    ) -> Pending:
        """ModelCalls are counted when they are done; this one may not even begin."""
        try:
            return answer(target, request)
        except ServingError as failed:
            self._calls.count(target.name, api, request.received, failed.code)
            raise

    # predict

    def _predict(self, target: Target, request: Request) -> Pending:
        try:
            version = self._calls.find(target)
        except ServingError:
            # A body that is no JSON is complained about before a model that is not there.
            _signature_name(documents.parse(request.body))
            raise
        self._calls.admit(version, request)
        document = documents.parse(request.body)
        asked = _signature_name(document)
        name, signature = checks.check_signature(version.described(), asked, rest=True)
        specs = signature.inputs
        if not specs:
            raise invalid_argument(f"Failed to get input map for signature: {asked or 'DEFAULT'}")
        tensors, write = _tensors(document, specs, _has_truths(request.body))
        checks.check_inputs(signature, tensors)
        return self._calls.start(
            version, name, tensors, request, lambda answer: Reply(200, write(answer.outputs))
        )

    # classify and regress

    def _by_example(self, api: str, target: Target, request: Request) -> Pending:
        try:
            version = self._calls.find(target)
        except ServingError:
            # As in predict, what is wrong with the body is said first.
            _examples_of(request.body)
            raise
        self._calls.admit(version, request)
        name, rows = _examples_of(request.body)
        name = examples.find(version.described(), name, f"tensorflow/serving/{api.lower()}")
        inputs = {examples.INPUTS: np.array(rows, object)}
        write = partial(_classified if api == "Classify" else _regressed, len(rows))
        return self._calls.start(version, name, inputs, request, write, api=api)

    # status and metadata

    def _status(self, target: Target, request: Request) -> Reply:
        """The state of one version, or of all, the newest first."""
        statuses = [_version_status(one) for one in self._backend.catalogue.known(*target)]
        return Reply(200, writing.encode({"model_version_status": statuses}))

    def _metadata(self, target: Target, request: Request) -> Reply:
        version = self._calls.find(target)
        spec = {"name": version.model, "signature_name": "", "version": str(version.number)}
        described = {name: _signature(one) for name, one in version.described().items()}
        body = {"model_spec": spec, "metadata": {"signature_def": {"signature_def": described}}}
        return Reply(200, writing.encode(body))


def _target(name: str, version: str | None, label: str | None) -> Target:
    number = None
    if version is not None:
        # A signed 64-bit number, however many zeros it begins with.
        number = int(version) if len(version.lstrip("0")) < 20 else 2**63
        if number >= 2**63:
            raise invalid_argument(f"Failed to convert version: {version[:40]} to numeric.")
    return Target(_decoded(name), number, None if label is None else _decoded(label))


def _decoded(text: str) -> str:
    # What is no UTF-8 can be no model's name, and is not found.
    return unquote_to_bytes(text).decode("utf-8", "replace")


def _tensors(
    document: dict[str, Any], specs: forms.Specs, truths: bool
) -> tuple[dict[str, Array], Callable[[Mapping[str, Array]], bytes]]:
    """The inputs of a request, and what writes its outputs: in the form of the inputs."""
    if "instances" not in document:
        if "inputs" not in document:
            raise invalid_argument("Missing 'inputs' or 'instances' key")
        return forms.columns(document["inputs"], specs, truths), writing.columns
    instances = document["instances"]
    if "inputs" in document:
        raise invalid_argument(
            f"JSON Value: {documents.show(document)} Not formatted correctly expecting only one "
            "of 'inputs' or 'instances' keys to exist "
        )
    if type(instances) is not list:
        raise invalid_argument(
            f"JSON Value: {documents.show(document)} Excepting 'instances' to be an list/array"
        )
    if not instances:
        raise invalid_argument(
            f"JSON Value: {documents.show(document)} No values in 'instances' array"
        )
    return forms.rows(instances, specs, truths), writing.predictions


def _has_truths(body: Body) -> bool:
    """Whether there may be a truth value in it. One letter is sought much faster than a word."""
    return (b"u" in body and b"true" in body) or (b"l" in body and b"false" in body)


def _signature_name(document: dict[str, Any]) -> str:
    name = document.get("signature_name", "")
    if type(name) is not str:
        raise invalid_argument(
            f"JSON Value: {documents.show(document)} not formatted correctly. "
            "'signature_name' key must be a string value."
        )
    return name


def _examples_of(body: Body) -> tuple[str, list[bytes]]:
    """The signature and the examples of a classify or regress request."""
    document = documents.parse(body)
    return _signature_name(document), forms.examples_of(document)


def _classified(rows: int, answer: Answer) -> Reply:
    found = examples.classifications(answer.outputs, rows)
    if not found:
        raise invalid_argument("Cannot convert empty ClassificationResults to JSON")
    # They came from float32, and are written as such.
    results = [[(label, np.float32(score)) for label, score in row] for row in found]
    return Reply(200, writing.encode({"results": results}))


def _regressed(rows: int, answer: Answer) -> Reply:
    found = examples.regressions(answer.outputs, rows)
    if not found:
        raise invalid_argument("Cannot convert empty RegressionResults to JSON")
    return Reply(200, writing.encode({"results": np.array(found, np.float32)}))


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
        "dtype": DATA_TYPES[spec.dtype].name if spec.dtype in DATA_TYPES else str(spec.dtype),
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
