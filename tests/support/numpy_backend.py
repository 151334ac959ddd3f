"""A backend without engines: models that are NumPy functions, for tests of the front ends."""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sublet.channel.client_protocol import Answer
from sublet.channel.codes import Code
from sublet.engine.savedmodel_proto import Signature, TensorSpec
from sublet.errors import ServingError
from sublet.serving.catalogue import Catalogue, Model, State, Version
from sublet.serving.frontend.backpressure import DelayedRefusals
from sublet.serving.frontend.model_backend import Arrays
from sublet.serving.metrics import Inferences

FLOAT, DOUBLE, INT32, STRING, INT64, BOOL = 1, 2, 3, 7, 9, 10
PREDICT = "tensorflow/serving/predict"

Array = np.ndarray[Any, Any]
Function = Callable[[Arrays], dict[str, Array]]


def spec(name: str, dtype: int, *shape: int) -> TensorSpec:
    """Of this shape."""
    return TensorSpec(f"{name}:0", dtype, shape)


def signature(
    inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec], method: str = PREDICT
) -> Signature:
    """One that is for predict unless it is said."""
    return Signature(method, inputs, outputs)


class NumpyBackend:
    """A `ModelBackend` whose models are functions in this process; `held` calls wait."""

    def __init__(self) -> None:
        self.catalogue = Catalogue()
        self.functions: dict[tuple[str, str], Function] = {}
        self.inferences: dict[tuple[str, int], Inferences] = {}
        self.changed: list[tuple[str, bool]] = []
        self.counted: list[tuple[str, str, str, int]] = []
        self.held: list[asyncio.Future[Answer]] = []
        self.holding = False
        self.full = False
        self.trouble = ""
        self._refusals = DelayedRefusals()

    def serve(
        self,
        name: str,
        *numbers: int,
        labels: Mapping[str, int] | None = None,
        **signatures: tuple[Signature, Function],
    ) -> None:
        described = {key: pair[0] for key, pair in signatures.items()}
        for key, pair in signatures.items():
            self.functions[name, key] = pair[1]
        versions = {
            number: Version(name, number, State.AVAILABLE, signatures=described)
            for number in numbers or (1,)
        }
        model = Model(name, versions, labels or {})
        self.catalogue = Catalogue({**self.catalogue.models, name: model})

    def infer(
        self,
        version: Version,
        signature: str,
        inputs: Arrays,
        outputs: Sequence[str] = (),
        deadline: float | None = None,
        priority: int = 0,
    ) -> Awaitable[Answer]:
        """As `ModelBackend.run`."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if self.holding:
            self.held.append(future)
            return future
        try:
            found = self.functions[version.model, signature](inputs)
            future.set_result(Answer({name: found[name] for name in outputs or found}))
        except ServingError as failed:
            future.set_exception(failed)
        except Exception as failed:
            future.set_exception(ServingError(str(failed), Code.INTERNAL))
        return future

    def unready(self, version: Version | None = None) -> str:
        """As `ModelBackend.unready`."""
        return self.trouble

    def memory(self, size: int) -> memoryview:
        """As `ModelBackend.memory`."""
        return np.empty(size, np.uint8).data

    def admit(self, version: Version, deadline: float | None = None) -> None:
        """As `ModelBackend.admit`."""
        if self.full:
            raise self._refusals.refusal("full")

    async def reload(self, config: bytes) -> None:
        """Nothing to replace."""

    def count(self, model: str, api: str, entrypoint: str, code: int, seconds: float) -> None:
        """As `ModelBackend.count`."""
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
        """As `ModelBackend.exposition`."""
        return "# HELP requests\nrequests 1\n"


def half_plus_two(inputs: Arrays) -> dict[str, Array]:
    """As the model of TensorFlow Serving's tests."""
    return {"y": inputs["x"] * np.float32(0.5) + np.float32(2)}


def _x_of(example: bytes) -> float:
    """The float of an example whose only feature is one float."""
    return float(struct.unpack("<f", example[-4:])[0])


def regress(inputs: Arrays) -> dict[str, Array]:
    """half_plus_two of serialized examples."""
    x = np.array([[_x_of(each)] for each in inputs["inputs"]], np.float32)
    return {"outputs": x * np.float32(0.5) + np.float32(2)}


def classify(inputs: Arrays) -> dict[str, Array]:
    """The same, as scores without labels."""
    return {"scores": regress(inputs)["outputs"]}


def numpy_backend() -> NumpyBackend:
    """With the models that the tests of the front ends use."""
    made = NumpyBackend()
    float_column = spec("x", FLOAT, -1, 1)
    text = TensorSpec("tf_example:0", STRING, None)
    made.serve(
        "half_plus_two",
        123,
        labels={"stable": 123},
        serving_default=(
            signature({"x": float_column}, {"y": spec("y", FLOAT, -1, 1)}),
            half_plus_two,
        ),
        regress_x_to_y=(
            signature(
                {"inputs": text},
                {"outputs": spec("y", FLOAT, -1, 1)},
                "tensorflow/serving/regress",
            ),
            regress,
        ),
        classify_x_to_y=(
            signature(
                {"inputs": text},
                {"scores": spec("y", FLOAT, -1, 1)},
                "tensorflow/serving/classify",
            ),
            classify,
        ),
    )
    kinds = {
        "a": spec("a", FLOAT, -1, 2),
        "b": spec("b", INT32, -1),
        "s_bytes": spec("s", STRING, -1),
    }
    made.serve("mixed", 1, 2, serving_default=(signature(kinds, kinds), dict))
    for name, dtype in (
        ("floats", FLOAT),
        ("doubles", DOUBLE),
        ("ints", INT32),
        ("longs", INT64),
        ("texts", STRING),
        ("truths", BOOL),
        ("halves", 19),
        ("bytes", 4),
        ("complexes", 8),
    ):
        any_shape = {"t": TensorSpec("t:0", dtype, None)}
        made.serve(name, 1, serving_default=(signature(any_shape, any_shape), dict))
    made.serve(
        "seven",
        7,
        serving_default=(
            signature({"x": float_column}, {"y": spec("y", FLOAT, -1, 1)}),
            half_plus_two,
        ),
    )
    return made
