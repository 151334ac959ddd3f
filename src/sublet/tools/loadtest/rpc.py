"""A server of any make over TensorFlow Serving's gRPC API, as a transport."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import grpc.aio

from sublet.channel import tensors
from sublet.channel.client_protocol import Answer
from sublet.channel.codes import Code
from sublet.engine.savedmodel_proto import Signature
from sublet.errors import ServingError, WorldError
from sublet.serving.client.call_arguments import Signatures
from sublet.serving.dtypes import STRING
from sublet.serving.frontend.proto import serving
from sublet.tools.loadtest.inputs import Arrays

_SERVICE = "/tensorflow.serving.PredictionService"
_ANSWERED = Answer({})
_PATIENCE = 10.0  # Seconds for a server to be there.


class GrpcTransport:
    """Calls one model at an address through gRPC; all calls share one connection."""

    rows = 1

    def __init__(self, address: str, model: str, version: int | None, token: str = "") -> None:
        self.about = f"{model} at {address}, through gRPC"
        self._address = address
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._model, self._version = model, version
        self._requests: Iterator[bytes] = iter(())
        # Large tensors are no error here.
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.aio.insecure_channel(address, options)
        # Bytes in, bytes out: nothing is encoded here.
        self._predict = self._channel.unary_unary(f"{_SERVICE}/Predict")
        self._describe = self._channel.unary_unary(f"{_SERVICE}/GetModelMetadata")

    async def describe(self) -> Signatures:
        try:
            await asyncio.wait_for(self._channel.channel_ready(), _PATIENCE)
        except TimeoutError:
            raise WorldError(
                f"{self._address} does not answer.",
                "Is the server started? gRPC is usually on port 8500: --grpc localhost:8500.",
            ) from None
        request = serving("GetModelMetadataRequest")(metadata_field=["signature_def"])
        self._name(request.model_spec)
        data = await self._ask(self._describe, request.SerializeToString())
        reply = serving("GetModelMetadataResponse").FromString(data)
        given = serving("SignatureDefMap").FromString(reply.metadata["signature_def"].value)
        return Signatures(
            {name: Signature.from_message(one) for name, one in given.signature_def.items()}
        )

    def prepare(self, name: str, signature: Signature, inputs: Sequence[Arrays], rows: int) -> None:
        self.rows = rows
        self._requests = itertools.cycle([self._request(name, one) for one in inputs])

    async def ready(self, concurrency: int) -> None:
        """Nothing has to be opened before calls."""

    def call(self) -> "asyncio.Future[Answer]":
        return asyncio.ensure_future(self._call(next(self._requests)))

    async def close(self) -> None:
        await self._channel.close()

    async def _call(self, data: bytes) -> Answer:
        await self._ask(self._predict, data)
        return _ANSWERED

    async def _ask(self, method: Any, data: bytes) -> bytes:
        try:
            reply: bytes = await method(data, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            code = Code(error.code().value[0])
            raise ServingError(error.details() or code.name, code) from None
        return reply

    def _request(self, name: str, inputs: Arrays) -> bytes:
        request = serving("PredictRequest")()
        self._name(request.model_spec)
        request.model_spec.signature_name = name
        for key, array in inputs.items():
            tensor = request.inputs[key]
            tensor.dtype = tensors.number_of(array.dtype)
            for size in array.shape:
                tensor.tensor_shape.dim.add(size=size)
            if tensor.dtype == STRING:
                tensor.string_val.extend(array.ravel())
            else:
                tensor.tensor_content = array.tobytes()
        data: bytes = request.SerializeToString()
        return data

    def _name(self, spec: Any) -> None:
        spec.name = self._model
        if self._version is not None:
            spec.version.value = self._version
