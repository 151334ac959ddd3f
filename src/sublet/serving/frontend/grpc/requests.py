"""What the services share: reading a request, and finding the model that it means."""

import time
from functools import lru_cache
from types import TracebackType
from typing import Any

from google.protobuf.message import DecodeError

from sublet.channel.codes import Code, invalid_argument
from sublet.channel.tensors import ALIGNED
from sublet.errors import ServingError
from sublet.serving.catalogue import Version
from sublet.serving.frontend.grpc.calls import Data, Memory
from sublet.serving.frontend.model_backend import ModelBackend
from sublet.serving.frontend.proto import serving
from sublet.serving.frontend.proto.wire import content_at


def parse(kind: Any, data: Data) -> Any:
    try:
        # Protobuf 4 takes no bytearray.
        return kind.FromString(memoryview(data))
    except DecodeError:
        name = kind.DESCRIPTOR.name
        raise ServingError(f"The request is no {name}.", Code.INTERNAL) from None


def serialized(response: Any) -> bytes:
    data: bytes = response.SerializeToString()
    return data


def has_spec(request: Any) -> None:
    """Refuse a request that says nothing about a model."""
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")


def find(backend: ModelBackend, spec: Any) -> Version:
    if not spec.name:
        raise invalid_argument("ModelSpec has no name specified.")
    return backend.catalogue.find(spec.name, *choice(spec))


def choice(spec: Any) -> tuple[int | None, str | None]:
    """The number or the label that a ModelSpec names, if any."""
    match spec.WhichOneof("version_choice"):
        case "version":
            return spec.version.value, None
        case "version_label":
            return None, spec.version_label
        case _:
            return None, None


def memory(backend: ModelBackend, way: tuple[int, ...]) -> Memory:
    """Where large requests lie: so that the content of their first large tensor is aligned."""

    def give(size: int, beginning: Data) -> memoryview:
        skipped = -content_at(beginning, way) % ALIGNED
        return backend.memory(size + skipped)[skipped:]

    return give


@lru_cache(4096)
def model_spec(name: str, version: int, signature: str = "") -> bytes:
    spec = serving("ModelSpec")(name=name, signature_name=signature)
    spec.version.value = version
    data: bytes = spec.SerializeToString()
    return data


class Counted:
    """Around a request: tells the model backend its code and its time, however it ends."""

    __slots__ = ("_api", "_backend", "_began", "_model")

    def __init__(self, backend: ModelBackend, model: str, api: str) -> None:
        self._backend = backend
        self._model = model
        self._api = api
        self._began = time.perf_counter()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        wrong: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if wrong is None:
            code = 0
        elif isinstance(wrong, ServingError):
            code = wrong.code
        else:
            code = Code.INTERNAL if isinstance(wrong, Exception) else Code.CANCELLED
        self._backend.count(self._model, self._api, "GRPC", code, time.perf_counter() - self._began)
