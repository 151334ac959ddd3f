"""Calls the user's builder, and checks what it returns."""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..training.refused import Refused


class Builder:
    """A function `build_model(**params)`, or a Keras Tuner HyperModel, and how it is seeded.

    The same parameters give the same initial weights: Keras is seeded before each call, with the
    parameter `seed` if there is one, else with the sweep's seed.
    """

    def __init__(self, build: Any, seed: int) -> None:
        self._build = build
        self._seed = seed
        self.is_hypermodel = not callable(build) and hasattr(build, "build")
        if not callable(build) and not self.is_hypermodel:
            raise Refused(
                f"{type(build).__name__} cannot build models.",
                "Give a function that returns a compiled Keras model, or a HyperModel.",
            )

    def check(self, names: list[str]) -> None:
        """Raise Refused if the builder cannot take these parameters."""
        if self.is_hypermodel:
            return
        try:
            signature = inspect.signature(self._build)
        except (TypeError, ValueError):
            return
        try:
            signature.bind(**dict.fromkeys(self._passed(names)))
        except TypeError as wrong:
            raise Refused(
                f"{self._build.__name__} cannot be called with {', '.join(names)}: {wrong}.",
                "Each name in the space is one of its parameters.",
            ) from None

    def build(self, params: Mapping[str, Any], first: Any) -> Any:
        """A compiled model with its initial weights. `first` is a batch of one row.

        Raises Refused for what is no such model, and whatever the builder raises.
        """
        import keras

        with _generators_as_they_were():
            keras.utils.set_random_seed(int(params.get("seed", self._seed)))
            model = self._call(params)
            if not isinstance(model, keras.Model):
                raise Refused(
                    f"The builder returned {type(model).__name__}, and no Keras 3 model.",
                    "Return a compiled keras.Model.",
                )
            if not getattr(model, "compiled", False) or model.optimizer is None:
                raise Refused(
                    "The builder returned a model that is not compiled.",
                    "Call model.compile(optimizer, loss) before returning it.",
                )
            if not model.built or not model.variables:
                model(first)
        return model

    def _call(self, params: Mapping[str, Any]) -> Any:
        if not self.is_hypermodel:
            return self._build(**{name: params[name] for name in self._passed(list(params))})
        import keras_tuner

        values = keras_tuner.HyperParameters()
        for name, value in params.items():
            values.Fixed(name, value)
        return self._build.build(values)

    def _passed(self, names: list[str]) -> list[str]:
        """The names that the builder gets: `seed` only if it has such a parameter."""
        if "seed" not in names:
            return names
        with contextlib.suppress(TypeError, ValueError):
            parameters = inspect.signature(self._build).parameters.values()
            takes = any(one.name == "seed" or one.kind is one.VAR_KEYWORD for one in parameters)
            return names if takes else [name for name in names if name != "seed"]
        return names


def shapes(model: Any) -> list[tuple[tuple[int, ...], str]]:
    """What a model's variables look like."""
    return [(tuple(one.shape), str(one.dtype)) for one in model.variables]


@contextlib.contextmanager
def _generators_as_they_were() -> Iterator[None]:
    """Leave Python's and NumPy's generators to the program as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
