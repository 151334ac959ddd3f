"""tensorflow.serving.PredictionService: Predict, Classify, Regress, MultiInference, metadata.

Checks, texts and codes follow TensorFlow Serving. One difference: the signatures of a
MultiInference run one by one, so they need not share the tensor that they read.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np

from sublet.channel.codes import Code, invalid_argument
from sublet.engine.savedmodel_proto import Signature
from sublet.engine.signatures import BY_EXAMPLE, DEFAULT
from sublet.errors import BadRequest, ServingError
from sublet.serving.access import Right
from sublet.serving.catalogue import Version
from sublet.serving.frontend import checks, examples
from sublet.serving.frontend.grpc.calls import Data, Method, Methods
from sublet.serving.frontend.grpc.requests import (
    Counted,
    choice,
    find,
    has_spec,
    memory,
    model_spec,
    parse,
    serialized,
)
from sublet.serving.frontend.model_backend import Arrays, ModelBackend
from sublet.serving.frontend.proto import serving, tensors
from sublet.serving.frontend.proto.tensors import signature_defs
from sublet.serving.frontend.proto.wire import LARGE, PREDICT, head, lift, piece

_SIGNATURE_DEF = "signature_def"
_PREDICT = serving("PredictRequest")


class PredictionService:
    """tensorflow.serving.PredictionService."""

    def __init__(self, backend: ModelBackend) -> None:
        self._backend = backend

    def methods(self) -> Methods:
        path = b"/tensorflow.serving.PredictionService/"
        return {
            path + b"Predict": Method(self.predict, memory=memory(self._backend, PREDICT)),
            path + b"Classify": Method(self.classify),
            path + b"Regress": Method(self.regress),
            path + b"MultiInference": Method(self.multi_inference),
            path + b"GetModelMetadata": Method(self.get_model_metadata),
        }

    async def predict(self, data: Data, deadline: float | None) -> bytes:
        request, contents = _parse_predict(data)
        spec = request.model_spec
        with Counted(self._backend, spec.name, "Predict"):
            has_spec(request)
            version = find(self._backend, spec)
            self._backend.admit(version, deadline)
            signatures = version.described()
            name, signature = checks.check_signature(signatures, spec.signature_name)
            inputs = {
                alias: tensors.read(alias, each, contents.get(alias))
                for alias, each in request.inputs.items()
            }
            checks.check_inputs(signature, inputs)
            wanted = request.output_filter
            outputs = checks.check_outputs(signature, wanted) if wanted else ()
            answer = await self._backend.infer(version, name, inputs, outputs, deadline)
            parts: list[bytes | memoryview] = []
            for alias, array in answer.outputs.items():
                begin, values = tensors.parts(array)
                size = len(begin) + len(values)
                entry = piece(1, alias.encode()) + head(2, size)
                parts += (head(1, len(entry) + size), entry, begin, values)
            parts.append(piece(2, model_spec(version.model, version.number, name)))
            return b"".join(parts)

    async def classify(self, data: Data, deadline: float | None) -> bytes:
        """Examples in, labels and scores for each out."""
        return await self._by_example(data, deadline, "Classify", "Classification")

    async def regress(self, data: Data, deadline: float | None) -> bytes:
        """Examples in, a number for each out."""
        return await self._by_example(data, deadline, "Regress", "Regression")

    async def multi_inference(self, data: Data, deadline: float | None) -> bytes:
        """The same examples for several signatures of one model."""
        request = parse(serving("MultiInferenceRequest"), data)
        tasks = request.tasks
        spec = tasks[0].model_spec if tasks else serving("ModelSpec")()
        with Counted(self._backend, spec.name, "MultiInference"):
            version = find(self._backend, spec)
            self._backend.admit(version, deadline)
            signatures = version.described()
            picked: dict[str, str] = {}
            for task in tasks:
                self._pick(task, spec.name, signatures, picked)
            given = examples.from_input(request.input)
            answers = await asyncio.gather(
                *(self._infer_examples(version, name, given, deadline) for name in picked)
            )
            response = serving("MultiInferenceResponse")()
            for (name, method), outputs in zip(picked.items(), answers, strict=True):
                result = response.results.add()
                result.model_spec.ParseFromString(model_spec(version.model, version.number, name))
                by_class = method == examples.CLASSIFY
                filled = result.classification_result if by_class else result.regression_result
                _fill(filled, method, outputs, len(given))
            return serialized(response)

    @staticmethod
    def _pick(
        task: Any, model: str, signatures: Mapping[str, Signature], picked: dict[str, str]
    ) -> None:
        """Check one task of a MultiInference; its signature and method join those picked."""
        name = task.model_spec.signature_name or DEFAULT
        signature = signatures.get(name)
        if not task.model_spec.name:
            raise invalid_argument("Found ModelSpec with an empty model name.")
        if task.model_spec.name != model:
            raise invalid_argument(
                "All ModelSpecs in a MultiInferenceRequest must access the same model name."
            )
        if name in picked:
            raise invalid_argument(f"Duplicate evaluation of signature: {name}")
        if signature is None:
            raise invalid_argument(f"Requested signature not found in model graph: {name}")
        if task.method_name not in BY_EXAMPLE:
            raise ServingError(
                f"Unsupported signature method_name: {task.method_name}", Code.UNIMPLEMENTED
            )
        examples.check(signature, task.method_name)
        picked[name] = task.method_name

    async def get_model_metadata(self, data: Data, deadline: float | None) -> bytes:
        request = parse(serving("GetModelMetadataRequest"), data)
        has_spec(request)
        if not request.metadata_field:
            raise invalid_argument(
                "GetModelMetadataRequest must specify at least one metadata_field"
            )
        for field in request.metadata_field:
            if field != _SIGNATURE_DEF:
                raise invalid_argument(f"Metadata field {field} is not supported")
        version = find(self._backend, request.model_spec)
        response = serving("GetModelMetadataResponse")()
        response.model_spec.ParseFromString(model_spec(version.model, version.number))
        signatures = version.described()
        response.metadata[_SIGNATURE_DEF].Pack(signature_defs(signatures))
        return serialized(response)

    async def _by_example(
        self, data: Data, deadline: float | None, api: str, message: str
    ) -> bytes:
        """What Classify and Regress have in common; `message` is how their messages begin."""
        method = f"tensorflow/serving/{api.lower()}"
        request = parse(serving(f"{message}Request"), data)
        spec = request.model_spec
        with Counted(self._backend, spec.name, api):
            has_spec(request)
            version = find(self._backend, spec)
            self._backend.admit(version, deadline)
            name = examples.find(version.described(), spec.signature_name, method)
            given = examples.from_input(request.input)
            outputs = await self._infer_examples(version, name, given, deadline)
            response = serving(f"{message}Response")()
            _fill(response.result, method, outputs, len(given))
            response.model_spec.ParseFromString(model_spec(version.model, version.number, name))
            return serialized(response)

    async def _infer_examples(
        self, version: Version, name: str, given: list[bytes], deadline: float | None
    ) -> Arrays:
        """Examples through a signature. The type of its input is not checked: some models are
        served whose signature names another one than their graph has."""
        inputs = {examples.INPUTS: np.array(given, object)}
        answer = await self._backend.infer(version, name, inputs, (), deadline)
        return answer.outputs


def _parse_predict(data: Data) -> tuple[Any, dict[str, memoryview]]:
    """A PredictRequest, and the contents of those of its tensors that are large."""
    if len(data) < LARGE:
        return parse(_PREDICT, data), {}
    lifted = lift(memoryview(data))
    request = parse(_PREDICT, lifted.request)
    if lifted.contents and len(request.inputs) != lifted.inputs:
        return parse(_PREDICT, data), {}
    return request, lifted.contents


def _fill(result: Any, method: str, outputs: Arrays, rows: int) -> None:
    if method == examples.REGRESS:
        for value in examples.regressions(outputs, rows):
            result.regressions.add(value=value)
        return
    for row in examples.classifications(outputs, rows):
        classes = result.classifications.add().classes
        for label, score in row:
            classes.add(label=label, score=score)


class ModelService:
    """tensorflow.serving.ModelService."""

    def __init__(self, backend: ModelBackend) -> None:
        self._backend = backend

    def methods(self) -> Methods:
        path = b"/tensorflow.serving.ModelService/"
        return {
            path + b"GetModelStatus": Method(self.get_model_status),
            path + b"HandleReloadConfigRequest": Method(
                self.handle_reload_config_request, right=Right.RELOAD
            ),
        }

    async def get_model_status(self, data: Data, deadline: float | None) -> bytes:
        """The state of one version, or of all."""
        request = parse(serving("GetModelStatusRequest"), data)
        has_spec(request)
        spec = request.model_spec
        response = serving("GetModelStatusResponse")()
        for version in self._backend.catalogue.known(spec.name, *choice(spec)):
            status = response.model_version_status.add(version=version.number, state=version.state)
            status.status.error_code = version.code
            status.status.error_message = version.error
            status.devices.extend(version.devices)
        return serialized(response)

    async def handle_reload_config_request(self, data: Data, deadline: float | None) -> bytes:
        request = parse(serving("ReloadConfigRequest"), data)
        config, names = request.config, list(dict.fromkeys(request.metric_names))
        if config.WhichOneof("config") != "model_config_list":
            raise invalid_argument(
                "ServerModelConfig type not supported by HandleReloadConfigRequest."
                " Only ModelConfigList is currently supported"
            )
        before = await self._metrics(names)
        try:
            await self._backend.reload(config.SerializeToString())
        except BadRequest as wrong:
            raise invalid_argument(str(wrong)) from None
        response = serving("ReloadConfigResponse")()
        response.status.SetInParent()
        for name, value in (await self._metrics(names)).items():
            response.metric.add(name=name, int64_value_increase=value - before[name])
        return serialized(response)

    async def _metrics(self, names: list[str]) -> dict[str, int]:
        """The first value of each of these metrics; 0 if there is none."""
        values = dict.fromkeys(names, 0)
        for line in reversed((await self._backend.exposition()).splitlines() if names else ()):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            # TensorFlow Serving's own names have slashes, which Prometheus does not know.
            for asked in (name, name.replace(":", "/")):
                if asked in values:
                    values[asked] = int(float(value))
        return values
