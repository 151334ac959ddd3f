"""Notes how requests end."""

import time
from types import TracebackType

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.serving.frontend.model_backend import ModelBackend


class Counted:
    """Around a request: tells the desk its code and its time, however it ends."""

    __slots__ = ("_api", "_began", "_desk", "_model")

    def __init__(self, desk: ModelBackend, model: str, api: str) -> None:
        self._desk = desk
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
        self._desk.count(self._model, self._api, "GRPC", code, time.perf_counter() - self._began)
