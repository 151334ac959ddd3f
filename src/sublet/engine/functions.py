"""Functions and models of a user's program, served as if they were SavedModels.

Owns both ends: `stow` in the program that has them, and the opening in the engine. What can become
a SavedModel does, and needs no more of the program's code; any other function is sent as it is, by
cloudpickle, and only from a program of the same user.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sublet.channel.codes import Code, invalid_argument
from sublet.channel.tensors import Array
from sublet.engine import compute_threads, failures
from sublet.engine.model_opening import Opened
from sublet.engine.model_sources import FUNCTION
from sublet.engine.savedmodel_proto import ANY, Signature, TensorSpec
from sublet.engine.signatures import DEFAULT, Bound, Gate
from sublet.errors import ServingError

_PREDICT = "tensorflow/serving/predict"


def stow(thing: Any, directory: str) -> tuple[str, dict[str, Any]]:
    """Write `thing` into the empty `directory`: a path for `ModelStore.add`, and options for it.
    It is a Keras model, a `tf.function` with an input signature, or any function of arrays; a
    path is left as it is."""
    if isinstance(thing, (str, os.PathLike)):
        return os.fspath(thing), {}
    path = os.path.join(directory, "model")
    if hasattr(thing, "stateless_call"):
        from sublet.engine.keras_files import export

        export(thing, path)
        return path, {}
    if hasattr(thing, "get_concrete_function"):
        import tensorflow as tf

        if getattr(thing, "input_signature", None) is None:
            raise invalid_argument(
                "This tf.function takes whatever it is given, so its inputs are not known. Give it "
                "an input_signature: @tf.function(input_signature=[tf.TensorSpec(…)])."
            )
        module = tf.Module()
        module.function = thing
        tf.saved_model.save(module, path, signatures=thing.get_concrete_function())
        return path, {}
    if not callable(thing):
        raise invalid_argument(
            f"{type(thing).__name__} cannot be served. "
            "Give a path, a function, a tf.function or a Keras model."
        )
    import cloudpickle

    path = os.path.join(directory, "function")
    with open(path, "wb") as out:
        out.write(cloudpickle.dumps(thing))
    return path, {"kind": FUNCTION}


class FunctionOpening:
    """Opens a function that was sent as it is. Option `batchable`: it takes and gives any number
    of rows."""

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        self._path = path
        self._options = options

    def open(self) -> Opened:
        import cloudpickle

        compute_threads.start_eager()  # The function may run anything of TensorFlow.
        try:
            with open(self._path, "rb") as file:
                function = cloudpickle.loads(file.read())
        except Exception as wrong:
            raise ServingError(
                f"The function cannot be had here: {wrong}. It must not need what only the "
                "program that sent it has.",
                Code.FAILED_PRECONDITION,
            ) from wrong
        return _Function(function, bool(self._options.get("batchable")))

    def cancel(self) -> None:
        """A function that does not come to its end cannot be stopped."""


class _Function:
    def __init__(self, function: Callable[..., Any], batchable: bool) -> None:
        names = _parameters(function)
        signature = Signature(_PREDICT, {name: TensorSpec(name, ANY, None) for name in names}, {})
        self._gate = Gate()
        self.signatures: dict[str, Bound] = {
            DEFAULT: _Call(function, signature, self._gate, batchable)
        }

    def close(self) -> None:
        self._gate.close()

    def cancel(self) -> None:
        """A function that does not come to its end cannot be stopped."""


class _Call(Bound):
    """A function as a signature; what it gives is only known when it has run."""

    def __init__(
        self, function: Callable[..., Any], signature: Signature, gate: Gate, batchable: bool
    ) -> None:
        super().__init__(DEFAULT, signature, lambda _: (), gate, False, batchable)
        self._function = function

    def call(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        with self._gate:
            try:
                result = self._function(**{name: inputs[name] for name in self._names})
            except (Exception, SystemExit) as error:
                answer = failures.explained(error)
                if answer is error or hasattr(error, "error_code"):
                    raise  # It says by itself what it is: ours, or TensorFlow's.
                raise ServingError(
                    f"{type(error).__name__}: {answer.message}", answer.code
                ) from error
        if not isinstance(result, Mapping):
            several = result if isinstance(result, (tuple, list)) else (result,)
            result = {f"output_{number}": one for number, one in enumerate(several)}
        return {str(name): _array(one) for name, one in result.items()}


def _parameters(function: Callable[..., Any]) -> list[str]:
    """The names under which it takes its inputs."""
    parameters = inspect.signature(function).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [one.name for one in parameters if one.kind in named and one.default is one.empty]
    if not names or any(one.kind is one.POSITIONAL_ONLY for one in parameters):
        raise invalid_argument(
            "A function that is served takes its inputs by name. Give each a parameter, "
            "as in `def predict(x): …`."
        )
    return names


def _array(value: Any) -> Array:
    """As arrays travel: text as bytes."""
    array = np.asarray(value)
    if array.dtype.kind == "U":
        return np.char.encode(array, "utf-8").astype(object)
    return array.astype(object) if array.dtype.kind == "S" else array
