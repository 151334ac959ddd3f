"""Which models can be trained as one, as far as their classes and their settings show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..parts.calls import functional
from ..training import checks
from ..training.micro_step import has_own_loss
from .architecture import architecture, differing
from .trainer import CannotStack


def check(models: Sequence[Any]) -> None:
    """Raises CannotStack if these models cannot be in one stack."""
    if not models:
        raise CannotStack("", "a stack needs a model")
    for model in models:
        _check(model)
    if len({id(model) for model in models}) < len(models):
        raise CannotStack(models[0].name, "one model is in the stack twice")
    first = architecture(models[0])
    for model in models[1:]:
        other = architecture(model)
        if other != first:
            raise CannotStack(
                model.name, f"it differs from {models[0].name} in {differing(first, other)}"
            )


def _check(model: Any) -> None:
    name = getattr(model, "name", type(model).__name__)
    if not getattr(model, "compiled", False) or model.optimizer is None:
        raise CannotStack(name, "it is not compiled; call its `compile` in the builder")
    if functional(model) is None:
        kind = type(model).__name__
        if hasattr(model, "_functional"):
            raise CannotStack(name, f"{kind} is not built yet; begin it with an Input")
        raise CannotStack(name, f"{kind} is a class of the program's with a `call` of its own")
    if why := checks.refusal(model, "train_step") or checks.refusal(model, "test_step"):
        raise CannotStack(name, why)
    if has_own_loss(model):
        raise CannotStack(name, f"{type(model).__name__}.compute_loss is the program's own")
    from keras.src.trainers.trainer import Trainer

    if type(model).compute_metrics is not Trainer.compute_metrics:
        raise CannotStack(name, f"{type(model).__name__}.compute_metrics is the program's own")
    if model.run_eagerly:
        raise CannotStack(name, "it is compiled with run_eagerly")


def prepare(models: Sequence[Any], batch: Any) -> None:
    """Make what is missing of the first model: metrics and the optimizer's variables. Dropout
    layers with a rate of 0 get a seed, as those of other models have one."""
    from keras.src.random.seed_generator import SeedGenerator

    first = models[0]
    fresh = not first.optimizer.built
    for model in models:
        for layer in model._flatten_layers(include_self=False):
            if getattr(layer, "rate", None) == 0 and not hasattr(layer, "seed_generator"):
                layer._tracker.unlock()
                layer.seed_generator = SeedGenerator(0)
                layer._tracker.lock()
    first._symbolic_build(data_batch=batch)
    if not first.optimizer.built:
        first.optimizer.build(first.trainable_variables)
    for model in models[1:]:
        plain = fresh and not hasattr(model.optimizer, "inner_optimizer")
        if not plain and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
