"""A real engine whose models are NumPy functions: no TensorFlow, so it starts in a moment.

Run as a program it is the engine; `numpy_engine` starts it and gives its owner's client.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sublet.channel.codes import Code
from sublet.channel.sync_client import SyncClient
from sublet.channel.tensors import Array
from sublet.engine.model_store import ModelStore
from sublet.engine.savedmodel_proto import Signature, TensorSpec
from sublet.engine.signatures import Bound, Gate
from sublet.errors import ServingError
from support.sandbox import PATIENCE, wait_for

FLOAT, STRING = 1, 7


def floats(values: Any) -> Array:
    """As most models take them."""
    return np.array(values, np.float32)


class NumpyModels(ModelStore):
    """Models by the name of a function below; `path` is a directory to wait for files in."""

    def _opening(self, entry: Any) -> Any:
        return Opening(entry.key[0], entry.path, entry.options)


class Opening:
    """As those of SavedModels."""

    def __init__(self, name: str, path: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._path = path
        self._held = bool(options.get("held"))

    def open(self) -> "Opened":
        if self._name == "broken":
            raise ServingError("it is broken", Code.FAILED_PRECONDITION)
        if self._held:
            wait_for(lambda: os.path.exists(os.path.join(self._path, "load")), "it may be loaded")
        return Opened(FUNCTIONS[self._name.partition("-")[0]](self._path))

    def cancel(self) -> None:
        """It comes to its end."""


class Opened:
    """What the store keeps of a model."""

    def __init__(self, bound: Bound) -> None:
        self.signatures = {"serving_default": bound}

    def close(self) -> None:
        self.signatures["serving_default"]._gate.close()

    def cancel(self) -> None:
        """A function comes to its end."""


def _bound(
    run: Callable[..., Any],
    *,
    inputs: Mapping[str, TensorSpec] | None = None,
    outputs: tuple[str, ...] = ("y",),
    batchable: bool = True,
    stateful: bool = False,
) -> Bound:
    takes = inputs or {"x": TensorSpec("x:0", FLOAT, (-1, -1))}
    gives = {name: TensorSpec(f"{name}:0", FLOAT, (-1, -1)) for name in outputs}
    signature = Signature("tensorflow/serving/predict", dict(takes), gives)
    return Bound(
        "serving_default", signature, lambda arrays: run(*arrays), Gate(), stateful, batchable
    )


def _double(path: str) -> Bound:
    return _bound(lambda x: [2 * x])


def _quick(path: str) -> Bound:
    bound = _bound(lambda x: [2 * x])
    bound.quick = True
    return bound


def _sizes(path: str) -> Bound:
    """Each row of the answer: how many rows its batch had."""
    return _bound(lambda x: [np.full((len(x), 1), len(x), np.float32)])


def _both(path: str) -> Bound:
    two = {"a": TensorSpec("a:0", FLOAT, (-1, -1)), "b": TensorSpec("b:0", FLOAT, (-1, -1))}

    def run(a: Array, b: Array) -> list[Array]:
        return [a + b, (a - b).astype(np.int32)]

    return _bound(run, inputs=two, outputs=("sum", "difference"))


def _positive(path: str) -> Bound:
    """Fails as a whole if one row is negative."""

    def run(x: Array) -> list[Array]:
        if (x < 0).any():
            raise ValueError("a row is negative")
        return [x]

    return _bound(run)


def _counter(path: str) -> Bound:
    total = 0.0

    def run(x: Array) -> list[Array]:
        nonlocal total
        total += float(x.sum())
        return [np.asarray(total, np.float32)]

    return _bound(run, batchable=False, stateful=True)


def _words(path: str) -> Bound:
    upper = np.frompyfunc(bytes.upper, 1, 1)
    return _bound(lambda x: [upper(x)], inputs={"x": TensorSpec("x:0", STRING, (-1,))})


def _frames(path: str) -> Bound:
    """Four numbers become one row."""
    return _bound(lambda x: [x.reshape(-1, 4)])


def _nones(path: str) -> Bound:
    return _bound(lambda x: [np.array([None])], batchable=False)


def _held(path: str) -> Bound:
    """Waits for the file `go`, and leaves `begun` before."""

    def run(x: Array) -> list[Array]:
        Path(path, "begun").touch()
        wait_for(lambda: os.path.exists(os.path.join(path, "go")), "it may go on")
        return [2 * x]

    return _bound(run)


def _large(path: str) -> Bound:
    """A thousand times as many columns as it is given."""
    return _bound(lambda x: [np.repeat(x, 1000, axis=1)])


class ResourceExhaustedError(Exception):
    """As TensorFlow's."""

    error_code = 8


def _tight(path: str) -> Bound:
    """As `sizes`, with memory for five rows."""

    def run(x: Array) -> list[Array]:
        if len(x) > 5:
            raise ResourceExhaustedError(
                "OOM when allocating tensor with shape[6,1] and type float"
            )
        return [np.full((len(x), 1), len(x), np.float32)]

    return _bound(run)


def _dates(path: str) -> Bound:
    """Gives what no client can be sent."""
    return _bound(lambda x: [np.full((len(x), 1), "2026", "datetime64[Y]")])


FUNCTIONS: dict[str, Callable[[str], Bound]] = {
    "double": _double,
    "quick": _quick,
    "sizes": _sizes,
    "both": _both,
    "positive": _positive,
    "counter": _counter,
    "words": _words,
    "frames": _frames,
    "nones": _nones,
    "held": _held,
    "large": _large,
    "tight": _tight,
    "dates": _dates,
}


class NumpyEngine:
    """An engine's process and its owner's client."""

    def __init__(self, directory: Path, slots: int = 1) -> None:
        self.directory = directory
        self.path = str(directory / "engine.sock")
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "support.numpy_engine",
                    self.path,
                    str(slots),
                    str(theirs.fileno()),
                ],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            )
        self.client = SyncClient(mine)
        self.events: list[dict[str, Any]] = []
        self.client.on_event = self.events.append
        try:
            self.client.ask({"ask": "hello"})
        except BaseException:
            self.close()
            raise

    def add(self, model: str, version: int = 1, **options: Any) -> None:
        """Make one of the functions above known."""
        path = str(self.directory)
        reply = {"model": model, "version": version, "path": path, "options": options}
        self.client.ask({"ask": "add", **reply})

    def model(self, name: str) -> dict[str, Any]:
        """What the engine says about it."""
        reply: Any = self.client.ask({"ask": "models"})
        return next(one for one in reply if one["model"] == name)

    def touch(self, name: str) -> None:
        """Let a model go on that waits for this."""
        (self.directory / name).touch()

    def connect(self) -> SyncClient:
        """Another client."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(self.path)
        return SyncClient(sock)

    def close(self) -> None:
        self.client.close()
        self.process.wait(PATIENCE)


@contextlib.contextmanager
def numpy_engine(directory: Path, slots: int = 1) -> Iterator[NumpyEngine]:
    """An engine of its own for a test; ends with it."""
    engine = NumpyEngine(directory, slots)
    try:
        yield engine
    finally:
        engine.close()


def in_thread(act: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Have a thread do something; what came of it, value or error, is put into the list."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(act())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


if __name__ == "__main__":
    from sublet.engine import engine

    os.dup2(int(sys.argv[3]), engine.OWNER)
    engine.serve(sys.argv[1], int(sys.argv[2]), NumpyModels)
