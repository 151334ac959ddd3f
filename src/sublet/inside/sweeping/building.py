"""Calls the user's builder, and checks what it returns."""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ..stacks import checks
from ..stacks.batches import Chunk
from ..stacks.trainer import CannotStack, flat_logs
from ..training.refused import Refused


class Builder:
    """A function `build_model(**params)`, or `build_model(hp)` or a HyperModel as Keras Tuner takes
    them, and how it is seeded.

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
        if self.is_hypermodel or (self._is_of_tuner and "hp" not in names):
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
        if not self.is_hypermodel and ("hp" in params or not self._is_of_tuner):
            return self._build(**{name: params[name] for name in self._passed(list(params))})
        import keras_tuner

        values = keras_tuner.HyperParameters()
        for name, value in params.items():
            values.Fixed(name, value)
        return self._build.build(values) if self.is_hypermodel else self._build(values)

    @property
    def _is_of_tuner(self) -> bool:
        """Whether it takes nothing but what Keras Tuner calls `hp`."""
        with contextlib.suppress(TypeError, ValueError):
            return list(inspect.signature(self._build).parameters) == ["hp"]
        return False

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


def metric_names(model: Any, chunk: Chunk, validated: bool) -> list[str] | None:
    """What `fit` would tell of this model, in its order; None if only training shows it. Raises
    Refused if the model and the data do not fit together."""
    from keras.src import tree

    try:
        checks.check([model])
    except CannotStack:
        return None
    try:
        model._symbolic_build(data_batch=tree.map_structure(lambda one: one[0], chunk.alone().data))
    except (ValueError, TypeError, tf.errors.OpError) as wrong:
        raise Refused(
            f"The model cannot be trained with this data: {said(wrong)}.",
            "Its inputs, outputs and loss have to fit x and y.",
        ) from None
    names = list(flat_logs(model.get_metrics_result()))
    return names + [f"val_{name}" for name in names if validated]


def no_metric(metric: str, names: Iterable[str], validated: bool) -> tuple[str, str]:
    """What is wrong with a metric that is none of these, and what to do."""
    hint = "Name one of them, or add it to model.compile(metrics=…)."
    return (
        f"There is no metric {metric!r}; there are: {', '.join(names) or 'none'}.",
        hint if validated else f"{hint} val_… needs validation_data.",
    )


def said(error: BaseException) -> str:
    """What went wrong, in one line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].strip() if lines else ''}".rstrip(": ")[:300]


@contextlib.contextmanager
def _generators_as_they_were() -> Iterator[None]:
    """Leave Python's and NumPy's generators to the program as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
