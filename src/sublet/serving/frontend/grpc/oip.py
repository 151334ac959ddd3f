"""inference.GRPCInferenceService: the Open Inference Protocol, version 2.

A model has one signature there: the default one, the only one, or the one that the parameter
`signature_name` of a request names.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import sublet
from sublet.channel.codes import Code, invalid_argument
from sublet.engine.savedmodel_proto import Signature
from sublet.engine.signatures import DEFAULT
from sublet.errors import ServingError
from sublet.serving.access import Right
from sublet.serving.catalogue import Version
from sublet.serving.frontend import checks, oip_codec
from sublet.serving.frontend.grpc import oip_tensors
from sublet.serving.frontend.grpc.calls import Call, Data, Method, Methods, caller
from sublet.serving.frontend.grpc.health import Health
from sublet.serving.frontend.grpc.requests import Counted, memory, parse, serialized
from sublet.serving.frontend.model_backend import ModelBackend
from sublet.serving.frontend.proto import inference
from sublet.serving.frontend.proto.wire import INFER, LARGE, lift_raw, piece
from sublet.serving.frontend.shared_memory import ClientMemory, Regions

_REQUEST = inference("ModelInferRequest")
_EXTENSIONS = ("classification", "model_configuration", "statistics")


class InferenceService:
    """inference.GRPCInferenceService."""

    def __init__(
        self, backend: ModelBackend, health: Health, regions: Regions | None = None
    ) -> None:
        self._backend = backend
        self._health = health
        self._regions = regions

    def methods(self) -> Methods:
        path = b"/inference.GRPCInferenceService/"
        place = memory(self._backend, INFER)
        return {
            path + b"ServerLive": Method(self.server_live, right=Right.OPEN),
            path + b"ServerReady": Method(self.server_ready, right=Right.OPEN),
            path + b"ModelReady": Method(self.model_ready),
            path + b"ServerMetadata": Method(self.server_metadata),
            path + b"ModelMetadata": Method(self.model_metadata),
            path + b"ModelConfig": Method(self.model_config),
            path + b"ModelStatistics": Method(self.model_statistics),
            path + b"RepositoryIndex": Method(self.repository_index),
            path + b"RepositoryModelLoad": Method(self.load_model, right=Right.RELOAD),
            path + b"RepositoryModelUnload": Method(self.unload_model, right=Right.RELOAD),
            path + b"SystemSharedMemoryStatus": Method(self.shared_memory_status),
            path + b"SystemSharedMemoryRegister": Method(self.register_shared_memory),
            path + b"SystemSharedMemoryUnregister": Method(self.unregister_shared_memory),
            path + b"ModelInfer": Method(self.model_infer, memory=place),
            path + b"ModelStreamInfer": Method(None, self.model_stream_infer, place),
        }

    async def server_live(self, data: Data, deadline: float | None) -> bytes:
        return serialized(inference("ServerLiveResponse")(live=True))

    async def server_ready(self, data: Data, deadline: float | None) -> bytes:
        return serialized(inference("ServerReadyResponse")(ready=self._health.ready))

    async def model_ready(self, data: Data, deadline: float | None) -> bytes:
        request = parse(inference("ModelReadyRequest"), data)
        try:
            ready = not self._backend.unready(self._find(request.name, request.version))
        except ServingError as wrong:
            if wrong.code != Code.NOT_FOUND:
                raise
            ready = False
        return serialized(inference("ModelReadyResponse")(ready=ready))

    async def server_metadata(self, data: Data, deadline: float | None) -> bytes:
        response = inference("ServerMetadataResponse")(
            name="sublet",
            version=sublet.__version__,
            extensions=oip_codec.extensions(_EXTENSIONS, self._regions is not None),
        )
        return serialized(response)

    async def model_metadata(self, data: Data, deadline: float | None) -> bytes:
        request = parse(inference("ModelMetadataRequest"), data)
        version = self._find(request.name, request.version)
        _, signature = _signature(version.described(), "")
        document = oip_codec.model_metadata(self._backend.catalogue, version.model, signature)
        return serialized(inference("ModelMetadataResponse")(**document))

    async def model_config(self, data: Data, deadline: float | None) -> bytes:
        request = parse(inference("ModelConfigRequest"), data)
        version = self._find(request.name, request.version)
        _, signature = _signature(version.described(), "")
        config = oip_codec.model_config(version.model, signature)
        return serialized(inference("ModelConfigResponse")(config=config))

    async def model_statistics(self, data: Data, deadline: float | None) -> bytes:
        """The statistics of a version, of all versions of a model, or of all models."""
        request = parse(inference("ModelStatisticsRequest"), data)
        number = _number(request.version)
        counts = await self._backend.statistics()
        counted = oip_codec.model_statistics(self._backend.catalogue, counts, request.name, number)
        return serialized(inference("ModelStatisticsResponse")(**counted))

    async def repository_index(self, data: Data, deadline: float | None) -> bytes:
        request = parse(inference("RepositoryIndexRequest"), data)
        models = oip_codec.repository_index(self._backend.catalogue, request.ready)
        return serialized(inference("RepositoryIndexResponse")(models=models))

    async def load_model(self, data: Data, deadline: float | None) -> bytes:
        request = parse(inference("RepositoryModelLoadRequest"), data)
        oip_codec.check_change(request.parameters)
        await self._backend.change_model(request.model_name, load=True)
        return serialized(inference("RepositoryModelLoadResponse")())

    async def unload_model(self, data: Data, deadline: float | None) -> bytes:
        request = parse(inference("RepositoryModelUnloadRequest"), data)
        await self._backend.change_model(request.model_name, load=False)
        return serialized(inference("RepositoryModelUnloadResponse")())

    async def model_infer(self, data: Data, deadline: float | None) -> bytes:
        """Tensors in, tensors out, in the form in which they came."""
        request, raw = _parse(data)
        with Counted(self._backend, request.model_name, "Predict"):
            version = self._find(request.model_name, request.model_version)
            self._backend.admit(version, deadline)
            signatures = version.described()
            parameters = oip_tensors.parameters(request)
            oip_codec.check_parameters(parameters)
            name, signature = _signature(signatures, str(parameters.get("signature_name", "")))
            shared = self._shared_memory()
            inputs = oip_tensors.inputs(request, raw, shared, self._backend.memory)
            checks.check_inputs(signature, inputs)
            wanted = oip_tensors.wanted(request, shared)
            outputs = checks.check_outputs(signature, list(wanted))
            answer = await self._backend.infer(
                version,
                name,
                inputs,
                outputs,
                _sooner(deadline, parameters.get("timeout")),
                _priority(parameters.get("priority")),
            )
            response = inference("ModelInferResponse")(
                model_name=version.model, model_version=str(version.number), id=request.id
            )
            typed = any(given.HasField("contents") for given in request.inputs)
            oip_tensors.fill(response, answer.outputs, wanted, raw=not typed)
            return serialized(response)

    async def model_stream_infer(self, call: Call) -> None:
        """One answer for each request, in their order; one that fails does not end the stream."""
        while (data := await call.read()) is not None:
            try:
                answer = piece(2, await self.model_infer(data, call.deadline))
            except ServingError as wrong:
                answer = piece(1, wrong.message.encode())
            await call.write(answer)

    async def shared_memory_status(self, data: Data, deadline: float | None) -> bytes:
        request = parse(inference("SystemSharedMemoryStatusRequest"), data)
        regions, user = self._shared_memory().regions()
        response = inference("SystemSharedMemoryStatusResponse")()
        for one in regions.registered(user, request.name):
            for field, value in one.items():
                setattr(response.regions[one["name"]], field, value)
        return serialized(response)

    async def register_shared_memory(self, data: Data, deadline: float | None) -> bytes:
        given = parse(inference("SystemSharedMemoryRegisterRequest"), data)
        regions, user = self._shared_memory().regions()
        regions.register(user, given.name, given.key, given.offset, given.byte_size)
        return serialized(inference("SystemSharedMemoryRegisterResponse")())

    async def unregister_shared_memory(self, data: Data, deadline: float | None) -> bytes:
        """Forget one region, or all of this client's user."""
        request = parse(inference("SystemSharedMemoryUnregisterRequest"), data)
        regions, user = self._shared_memory().regions()
        regions.unregister(user, request.name)
        return serialized(inference("SystemSharedMemoryUnregisterResponse")())

    def _shared_memory(self) -> ClientMemory:
        # Who a client is costs a look into a table: only if it matters.
        user = None if self._regions is None else caller.get().user()
        return ClientMemory(self._regions, user)

    def _find(self, name: str, version: str) -> Version:
        return self._backend.catalogue.find(name, _number(version))


def _number(version: str) -> int | None:
    if not version:
        return None
    if not (version.isascii() and version.isdigit() and len(version) < 20):
        raise invalid_argument(
            f"The version {version!r} is not a number. Leave it out for the newest one."
        )
    return int(version)


def _parse(data: Data) -> tuple[Any, Sequence[bytes | memoryview]]:
    if len(data) < LARGE:
        request = parse(_REQUEST, data)
        return request, request.raw_input_contents
    rest, raw = lift_raw(memoryview(data))
    request = parse(_REQUEST, rest)
    return request, raw or request.raw_input_contents


def _signature(signatures: Mapping[str, Signature], name: str) -> tuple[str, Signature]:
    usable = [key for key, signature in signatures.items() if signature.inputs]
    if not name and DEFAULT not in signatures and len(usable) == 1:
        name = usable[0]
    return checks.check_signature(signatures, name)


def _sooner(deadline: float | None, timeout: Any) -> float | None:
    """A timeout is in microseconds; none and zero are no limit."""
    if type(timeout) is not int or timeout <= 0:
        return deadline
    mine = time.monotonic() + timeout / 1e6
    return mine if deadline is None else min(mine, deadline)


def _priority(given: Any) -> int:
    return given if type(given) is int and 0 <= given < 2**31 else 0
