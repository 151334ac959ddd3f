"""What a front end can ask of those behind it: models, engines and the server."""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from sublet.channel.client_protocol import Answer
from sublet.serving.catalogue import Catalogue, Version
from sublet.serving.metrics import Counts

Arrays = Mapping[str, np.ndarray[Any, Any]]


class ModelBackend(Protocol):
    """Everything raises ServingError, whose code and text are the client's answer."""

    catalogue: Catalogue  # As it is now; replaced as a whole.

    def infer(
        self,
        version: Version,
        signature: str,
        inputs: Arrays,
        outputs: Sequence[str] = (),
        deadline: float | None = None,
        priority: int = 0,
    ) -> Awaitable[Answer]:
        """Run rows of a model, batched with everyone else's.

        The caller has checked the inputs against the signature. `outputs` are the wanted ones, in
        their order; all if empty. `deadline` is a time of `time.monotonic`.
        """

    def unready(self, version: Version | None = None) -> str:
        """Why not all models can be called now, or this version cannot; empty if they can."""

    def memory(self, size: int) -> memoryview:
        """Memory for a large request. Tensors that lie in it, aligned to `channel.tensors.ALIGNED`,
        go to an engine without a copy, as a rule."""

    def admit(self, version: Version, deadline: float | None = None) -> None:
        """Raises what a call would be refused with, before its body is read: a model that is
        flooded must not cost others the processor. A `DelayedRefusal` is sent when it is due."""

    async def reload(self, config: bytes) -> None:
        """Replace what is served by a ModelServerConfig (a serialized message)."""

    async def change_model(self, name: str, load: bool) -> None:
        """Serve a model, or serve it no more; returns when that is done."""

    def count(self, model: str, api: str, entrypoint: str, code: int, seconds: float) -> None:
        """Count a finished request: api is Predict, Classify …, entrypoint REST or gRPC."""

    async def ask_engines(self, question: Mapping[str, Any]) -> list[Any]:
        """What each engine answers (`engine.control_requests`), in a fixed order."""

    async def statistics(self) -> Counts:
        """What became of the calls of each version, in all front ends."""

    async def exposition(self) -> str:
        """The metrics of all front ends and engines, as Prometheus reads them."""
