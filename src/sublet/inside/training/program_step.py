"""Stands between a `train_step` of the program's own and what it changes.

    part    the optimizer gets nothing: its gradients are kept. Metrics, states of layers and seeds
            change as ever. What is assigned after the optimizer's step is left out.
    end     the optimizer gets the sums of all parts, and what follows its step is assigned. Nothing
            else changes.
    whole   everything happens, the optimizer's step when all gradients are there.

A step of another form raises batch.CannotBeCut: it would not be known what to do with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from . import batch
from .assigned import is_float

Apply = Callable[[Any, list[Any], list[Any]], None]
"""Applies these gradients to these variables, with the optimizer."""


@dataclasses.dataclass
class Recorded:
    """What the program's step did."""

    logs: Any = None
    optimizer: Any = None
    gradients: list[Any] = dataclasses.field(default_factory=list)
    variables: list[Any] = dataclasses.field(default_factory=list)
    moved: list[Any] = dataclasses.field(default_factory=list)
    """Numbers that layers, or the model, keep, which were assigned to before the optimizer's
    step."""
    averaged: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)
    """Variables of metrics and what was assigned to them."""
    later: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)
    """The same of other variables that were assigned to after the optimizer's step."""
    seeds: list[Any] = dataclasses.field(default_factory=list)
    """Those that are not the model's."""
    at: int = 0
    """How many operations the graph had when the optimizer was to step."""


class ProgramStep:
    """`train_step` or `test_step` of a model whose class has one of its own."""

    def __init__(self, model: Any, name: str) -> None:
        self.model = model
        self.name = f"{type(model).__name__}.{name}"
        self._step = name

    def part(self, data: Any) -> Recorded:
        """Run it for a part of a batch."""
        return self._run(data, None, "part")

    def end(self, data: Any, apply: Apply) -> Recorded:
        """Run it once after all parts."""
        return self._run(data, apply, "end")

    def whole(self, data: Any, apply: Apply) -> Recorded:
        """Run it for a whole batch."""
        return self._run(data, apply, "whole")

    def as_it_is(self, data: Any) -> Any:
        """What the program itself would do."""
        return getattr(self.model, self._step)(data)

    def kind(self, variable: Any) -> str:
        """What a variable is to a step: metric, seed, state or other."""
        if str(getattr(variable, "path", "")).endswith("seed_generator_state"):
            return "seed"
        if any(one is variable for one in metric_variables(self.model)):
            return "metric"
        states = self.model.non_trainable_variables
        if is_float(variable) and any(one is variable for one in states):
            return "state"
        return "other"

    def _run(self, data: Any, apply: Apply | None, phase: str) -> Recorded:
        found = Recorded()
        computed: list[Any] = []
        with contextlib.ExitStack() as stack:
            stack.enter_context(_gradients(computed))
            applying = [False]
            for optimizer in _optimizers(self.model):
                step = functools.partial(self._applied, found, computed, apply, applying, optimizer)
                optimizer.__dict__["apply"] = step
                stack.callback(optimizer.__dict__.pop, "apply", None)
            if phase != "whole":
                assign = functools.partial(self._assigned, found, applying, phase)
                stack.enter_context(_assignments(assign))
            found.logs = self.as_it_is(data)
        if not found.variables and self._step == "train_step":
            raise batch.CannotBeCut(
                f"{self.name} applies no gradients by an optimizer of its model"
            )
        return found

    def _applied(
        self,
        found: Recorded,
        computed: list[Any],
        apply: Apply | None,
        applying: list[bool],
        optimizer: Any,
        grads: Any,
        trainable_variables: Any = None,
    ) -> None:
        import tensorflow as tf

        if applying[0]:
            apply_now(optimizer, grads, trainable_variables)  # One optimizer steps by another.
            return
        if found.variables:
            raise batch.CannotBeCut(f"{self.name} applies gradients more than once, as GANs do")
        given = (
            optimizer._trainable_variables if trainable_variables is None else trainable_variables
        )
        found.optimizer, found.gradients, found.variables = optimizer, list(grads), list(given)
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        for one in tf.nest.flatten(found.gradients, expand_composites=True):
            if graph is not None and one is not None and one.graph is not graph:
                raise batch.CannotBeCut(
                    f"{self.name} applies gradients inside a condition or a loop"
                )
        if any(
            one is not None and all(one is not other for other in computed)
            for one in found.gradients
        ):
            raise batch.CannotBeCut(
                f"{self.name} changes gradients before it applies them (if it clips them: "
                "optimizers have clipnorm=, global_clipnorm= and clipvalue=)"
            )
        found.at = 0 if graph is None else len(graph.get_operations())
        applying[0] = True
        try:
            _build(optimizer, found.variables)
            if apply is not None:
                apply(optimizer, found.gradients, found.variables)
        finally:
            applying[0] = False

    def _assigned(
        self,
        found: Recorded,
        applying: list[bool],
        phase: str,
        original: Callable[[Any, Any], Any],
        variable: Any,
        value: Any,
    ) -> Any:
        """What becomes of an assignment."""
        if applying[0]:
            return original(variable, value)
        kind = self.kind(variable)
        if kind == "metric":
            found.averaged.append((variable, value))
        elif kind == "seed":
            if all(one is not variable for one in found.seeds):
                found.seeds.append(variable)
        elif found.variables:
            found.later.append((variable, value))
            return original(variable, value) if phase == "end" else value
        elif kind == "state":
            if all(one is not variable for one in found.moved):
                found.moved.append(variable)
        else:
            raise batch.CannotBeCut(f"{self.name} assigns to {variable.path} itself")
        return value if phase == "end" else original(variable, value)


def apply_now(optimizer: Any, gradients: Any, variables: Any) -> None:
    """Have the optimizer step, while others are kept from it."""
    type(optimizer).apply(optimizer, gradients, variables)


def metric_variables(model: Any) -> list[Any]:
    """The variables of all metrics that the model knows, whether it shows them or not."""
    metrics = [
        *model.metrics,
        *(one for layer in model._flatten_layers() for one in layer._metrics),
    ]
    return [variable for metric in metrics for variable in metric.variables]


def _optimizers(model: Any) -> list[Any]:
    """All optimizers that are attributes of the model, which GANs have several of."""
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    found = [model.optimizer, *vars(model).values()]
    unique = {id(one): one for one in found if isinstance(one, BaseOptimizer)}
    return list(unique.values())


def _build(optimizer: Any, variables: list[Any]) -> None:
    """Make the optimizer's variables, as it would itself."""
    import tensorflow as tf
    from keras.src import backend

    if not optimizer.built:
        with tf.init_scope(), backend.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(variables)
        optimizer.built = True


@contextlib.contextmanager
def _gradients(computed: list[Any]) -> Iterator[None]:
    """Collects what tapes of this thread compute in the body."""
    import tensorflow as tf

    own, original = threading.get_ident(), tf.GradientTape.gradient

    @functools.wraps(original)
    def gradient(self: Any, *args: Any, **options: Any) -> Any:
        found = original(self, *args, **options)
        if threading.get_ident() == own:
            computed.extend(one for one in tf.nest.flatten(found) if one is not None)
        return found

    tf.GradientTape.gradient = gradient
    try:
        yield
    finally:
        tf.GradientTape.gradient = original


@contextlib.contextmanager
def _assignments(instead: Callable[..., Any]) -> Iterator[None]:
    """Calls `instead` where variables of Keras are assigned to by this thread in the body."""
    import keras

    own, original = threading.get_ident(), keras.Variable.assign

    @functools.wraps(original)
    def assign(variable: Any, value: Any) -> Any:
        if threading.get_ident() != own:
            return original(variable, value)
        return instead(original, variable, value)

    keras.Variable.assign = assign
    try:
        yield
    finally:
        keras.Variable.assign = original
