"""Trials of the same architecture, and how they are trained: as one, packed, or in turn."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ..stacks.architecture import architecture
from ..stacks.difference import difference, output_difference
from ..stacks.trainer import CannotStack
from ..training.refused import Refused
from . import probe, ways
from .cohort import Cohort, Member
from .data import Data
from .local import Local


@dataclass(frozen=True)
class Choice:
    """How a group is trained, and why so."""

    way: str
    why: str
    parts: tuple[tuple[int, ...], ...] = ()
    """The trials that train as one; of a way that is not fused, single ones."""
    make: ways.Make = ways.serial
    trainer: Any = None
    """Made already, of trials that train as one."""


class Names:
    """Gives each group a short name that no other has."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def of(self, model: Any) -> str:
        """What a model is: its kind and the number of its weights."""
        name = f"{type(model).__name__} {model.count_params():,}"
        self._given[name] = count = self._given.get(name, 0) + 1
        return name if count == 1 else f"{name} ({count})"


def key(model: Any) -> Hashable:
    """Equal for models of the same architecture."""
    return architecture(model)


def choose(local: Local, numbers: Sequence[int], data: Data, way: str) -> Choice:
    """The way for trials of one architecture, which are built. Raises Refused if the way that was
    asked for cannot be gone."""
    single = tuple((number,) for number in numbers)
    if way == "serial":
        return Choice("serial", "it was asked for", single)
    if way == "auto" and len(numbers) == 1:
        return Choice("serial", "there is no other of its kind", single)
    models = [local.built(number) for number in numbers]
    make = ways.fused(probe.most_in_lease(models[0]))
    batches = data.batches(1)
    try:
        trainer = make(models, batches)
    except CannotStack as why:
        if way == "fused":
            raise Refused(
                f"The models cannot be trained as one: {why}.", 'Use way="auto".'
            ) from None
        return _apart(f"they cannot be trained as one: {why}", numbers, data)
    together = (tuple(numbers),)
    if way == "fused":
        return Choice("fused", "it was asked for", together, make, trainer)
    try:
        verdict = probe.measure(
            trainer, lambda: local.again(numbers[0]), batches, local.epochs, data.sendable
        )
    except tf.errors.ResourceExhaustedError:
        # It is halved when it trains.
        return Choice("fused", "there was no memory to measure", together, make, trainer)
    if verdict.way == "fused":
        return Choice("fused", verdict.why, together, make, trainer)
    return Choice(verdict.way, verdict.why, single if verdict.way == "serial" else ())


def _apart(why: str, numbers: Sequence[int], data: Data) -> Choice:
    """Packed if there are several and the data can be sent, else one after the other."""
    if len(numbers) > 1 and data.sendable:
        return Choice("packed", why)
    if len(numbers) > 1:
        why += "; a tf.data.Dataset cannot be sent to workers"
    return Choice("serial", why, tuple((number,) for number in numbers))


def compare(local: Local, trial: Any, model: Any) -> tuple[float, float]:
    """Train a trial, which has `params`, by itself; how far its weights are from those of `model`,
    and its outputs for some rows."""
    alone = local.model(trial.params)
    cohort = Cohort([Member(trial.number, alone)], local.data, ways.serial)
    cohort.train(trial.epochs, lambda *_: None)
    return difference(model, alone), output_difference(model, alone, local.data.some())
