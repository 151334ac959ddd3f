"""A backend without engines: models made of NumPy, for the tests of the gRPC front end."""

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sublet.channel.client_protocol import Answer
from sublet.channel.codes import Code
from sublet.engine.savedmodel_proto import Signature, TensorSpec
from sublet.errors import ServingError
from sublet.serving.catalogue import Catalogue, Model, State, Version
from sublet.serving.control.config_files import decode_models
from sublet.serving.dtypes import DATA_TYPES
from sublet.serving.frontend.backpressure import DelayedRefusals
from sublet.serving.frontend.model_backend import Arrays
from sublet.serving.metrics import Inferences

PREDICT = "tensorflow/serving/predict"


def _spec(name: str, dtype: int = 1, shape: tuple[int, ...] | None = (-1, 1)) -> TensorSpec:
    return TensorSpec(f"{name}:0", dtype, shape)


HALF = {
    "serving_default": Signature(PREDICT, {"x": _spec("x")}, {"y": _spec("y")}),
    "classify_x_to_y": Signature(
        "tensorflow/serving/classify", {"inputs": _spec("e", 7, None)}, {"scores": _spec("y")}
    ),
    "classify_named": Signature(
        "tensorflow/serving/classify",
        {"inputs": _spec("e", 7, None)},
        {"scores": _spec("y"), "classes": _spec("c", 7)},
    ),
    "regress_x_to_y": Signature(
        "tensorflow/serving/regress", {"inputs": _spec("e", 7, None)}, {"outputs": _spec("y")}
    ),
    "regress_floats": Signature(
        "tensorflow/serving/regress", {"inputs": _spec("x")}, {"outputs": _spec("y")}
    ),
    "two": Signature(
        PREDICT,
        {"a": _spec("a", shape=(-1, 4)), "b": _spec("b", 3, (-1,))},
        {"sum": _spec("sum"), "difference": _spec("difference")},
    ),
}
ECHO = {
    kind.word: Signature(
        PREDICT,
        {"x": _spec("x", kind.number, None)},
        {"y": _spec("y", kind.number, None)},
    )
    for kind in DATA_TYPES.values()
}
SLOW = {"serving_default": HALF["serving_default"]}


def _half(signature: str, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
    if signature == "serving_default":
        return {"y": inputs["x"] / np.float32(2) + np.float32(2)}
    if signature == "two":
        total = inputs["a"].sum(axis=1, keepdims=True)
        other = inputs["b"].astype(np.float32).reshape(-1, 1)
        return {"sum": total + other, "difference": total - other}
    # The length of an example stands for what a model would make of it.
    y = np.array([[len(each)] for each in inputs["inputs"]], np.float32)
    if signature.startswith("regress"):
        return {"outputs": y}
    if signature == "classify_x_to_y":
        return {"scores": y}
    return {"scores": y, "classes": np.full(y.shape, "käse".encode(), object)}


class StandInBackend:
    """As `sublet.serving.frontend.model_backend.ModelBackend`.
    The model `slow` answers when it is let go."""

    def __init__(self) -> None:
        self.catalogue = Catalogue(
            {
                "half": Model(
                    "half",
                    {
                        123: Version("half", 123, State.AVAILABLE, signatures=HALF),
                        124: Version("half", 124, State.END, Code.INTERNAL, "no such file"),
                    },
                    {"stable": 123},
                ),
                "echo": Model("echo", {1: Version("echo", 1, State.AVAILABLE, signatures=ECHO)}),
                "slow": Model("slow", {1: Version("slow", 1, State.AVAILABLE, signatures=SLOW)}),
                "bug": Model("bug", {1: Version("bug", 1, State.AVAILABLE, signatures=HALF)}),
            }
        )
        self.inferences: dict[tuple[str, int], Inferences] = {}
        self.changed: list[tuple[str, bool]] = []
        self.counted: list[tuple[str, str, str, int]] = []
        self.deadlines: list[float | None] = []
        self.priorities: list[int] = []
        self.reloaded: list[str] = []
        self.begun = 0
        self.cancelled = 0
        self.waiting: list[weakref.ref[Any]] = []
        """The tensors of slow calls, if they are still there."""
        self.gate = asyncio.Event()
        self.full = False
        self.trouble = ""
        self._refusals = DelayedRefusals()

    async def infer(
        self,
        version: Version,
        signature: str,
        inputs: Arrays,
        outputs: Sequence[str] = (),
        deadline: float | None = None,
        priority: int = 0,
    ) -> Answer:
        self.deadlines.append(deadline)
        self.priorities.append(priority)
        self.begun += 1
        if version.model == "bug":
            raise RuntimeError("a bug")
        if version.model == "slow":
            self.waiting += map(weakref.ref, inputs.values())
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if version.model == "echo":
            return Answer({"y": inputs["x"]})
        made = _half(signature, inputs)
        return Answer({name: made[name] for name in outputs or made})

    def unready(self, version: Version | None = None) -> str:
        """As `ModelBackend.unready`."""
        return self.trouble

    def memory(self, size: int) -> memoryview:
        """As `ModelBackend.memory`."""
        return np.empty(size, np.uint8).data

    def admit(self, version: Version, deadline: float | None = None) -> None:
        """As `ModelBackend.admit`."""
        if self.full:
            refusal = ServingError("full", Code.UNAVAILABLE)
            raise self._refusals.refusal(refusal.message)

    async def reload(self, config: bytes) -> None:
        models = decode_models(config)
        if not models:
            raise ServingError("There must be a model.", Code.INVALID_ARGUMENT)
        self.reloaded = [model.name for model in models]

    def count(self, model: str, api: str, entrypoint: str, code: int, seconds: float) -> None:
        self.counted.append((model, api, entrypoint, code))

    async def change_model(self, name: str, load: bool) -> None:
        """As `ModelBackend.change_model`."""
        self.changed.append((name, load))

    async def ask_engines(self, question: Mapping[str, Any]) -> list[Any]:
        """As `ModelBackend.ask_engines`: there are none."""
        return []

    async def statistics(self) -> dict[tuple[str, int], Inferences]:
        """As `ModelBackend.statistics`."""
        return self.inferences

    async def exposition(self) -> str:
        return ""
