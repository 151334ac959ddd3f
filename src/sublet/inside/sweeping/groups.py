"""Trials of the same architecture, and how they are trained: as one, packed, or in turn."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from .. import oom
from ..parts.calls import functional
from ..stacks import checks
from ..stacks.architecture import architecture
from ..stacks.batches import Chunk
from ..stacks.difference import difference, output_difference
from ..stacks.trainer import CannotStack
from ..training.refused import Refused
from . import probe, ways
from .cohort import Cohort, Member
from .local import Local, own_seed

_GAIN = 0.8
"""Groups train side by side if that takes no more than this share of the time."""


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
    seconds: float = 0.0
    """What it will take from now on, if that was measured."""
    timing: probe.Timing | None = None
    """Of the stacks."""


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


def choose(
    local: Local,
    numbers: Sequence[int],
    way: str,
    pack: probe.Pack | None,
) -> Choice:
    """The way for trials of one architecture, which are built; without `pack` the data cannot be
    sent to workers. Raises Refused if the way that was asked for cannot be gone."""
    single = tuple((number,) for number in numbers)
    if way == "serial":
        return Choice("serial", "it was asked for", single)
    if way == "auto" and len(numbers) == 1:
        return Choice("serial", "there is no other of its kind", single)
    models = [local.built(number) for number in numbers]
    batches = local.batches(numbers)
    chunk, together = next(iter(batches.epoch())), (tuple(numbers),)
    most = probe.most_in_lease(models[0], chunk) if functional(models[0]) is not None else None
    make: ways.Make = ways.serial
    trainer, fused, alone = None, None, None
    try:
        checks.check(models)
        if way == "auto" and probe.is_large(models[0], chunk):
            alone = probe.timed_alone(local.again(numbers[0]), chunk)
        if alone is None or not probe.keeps_all_busy(alone):
            make, trainer, fused = _stacks(models, chunk, most, way == "auto")
    except CannotStack as why:
        if way == "fused":
            raise Refused(
                f"The models cannot be trained as one: {why}.", 'Use way="auto".'
            ) from None
        return _apart(f"they cannot be trained as one: {why}", numbers, pack is not None)
    if way == "fused":
        return Choice("fused", "it was asked for", together, make, trainer)
    if alone is None and (fused is None or fused.work / len(numbers) > probe.LEAST):
        alone = probe.timed_alone(local.again(numbers[0]), chunk)
    steps = batches.steps * local.epochs
    processors = len(os.sched_getaffinity(0))
    verdict = probe.judge(len(numbers), steps, processors, fused, alone, pack)
    if verdict.way == "fused":
        return Choice("fused", verdict.why, together, make, trainer, verdict.seconds, fused)
    return Choice(verdict.way, verdict.why, single if verdict.way == "serial" else ())


def _stacks(
    models: Sequence[Any], chunk: Chunk, most: int | None, measured: bool
) -> tuple[ways.Make, Any, probe.Timing | None]:
    """The largest stacks that fit, and their timing, if it is wanted; they are as they were after
    it."""
    while True:
        make = ways.fused(most)
        begin = time.perf_counter()
        trainer: Any = make(list(models), chunk)
        traced = time.perf_counter() - begin
        if not measured:
            return make, trainer, None
        try:
            with contextlib.ExitStack() as kept:
                for stack in trainer.members:
                    kept.enter_context(stack.unchanged())
                found = probe.timed(trainer, chunk)
            return make, trainer, dataclasses.replace(found, start=found.start + traced)
        except tf.errors.OpError as error:
            largest = max(len(one.models) for one in trainer.members)
            if not oom.is_oom(str(error)) or largest < 2:
                raise
            del trainer  # Its memory is for the next.
            most = largest // 2


def _apart(why: str, numbers: Sequence[int], sendable: bool) -> Choice:
    """Packed if there are several and the data can be sent, else one after the other."""
    if len(numbers) > 1 and sendable:
        return Choice("packed", why)
    if len(numbers) > 1:
        why += "; data (a tf.data.Dataset), builder or callbacks cannot be sent"
    return Choice("serial", why, tuple((number,) for number in numbers))


def apart(choices: Sequence[Choice], workers: int) -> bool:
    """Whether groups that train as one, and were timed, are faster in workers of their own, where
    they are traced again, than here, one after the other. Pure."""
    if len(choices) < 2 or any(one.timing is None for one in choices):
        return False
    ends = [0.0] * min(workers, len(choices))
    for one in sorted(choices, key=lambda one: -one.seconds):
        assert one.timing is not None
        slower = max(1.0, one.timing.processors * len(ends) / workers)
        ends.sort()
        ends[0] += probe.WORKER + one.timing.start + one.seconds * slower
    return max(ends) < _GAIN * sum(one.seconds for one in choices)


def compare(local: Local, trial: Any, model: Any) -> tuple[float, float]:
    """Train a trial, which has `params`, by itself; how far its weights are from those of `model`,
    and its outputs for some rows."""
    alone = local.model(trial.params)
    cohort = Cohort([Member(trial.number, alone, own_seed(trial))], local.data, ways.serial)
    cohort.train(trial.epochs, lambda *_: None)
    return difference(model, alone), output_difference(model, alone, local.data.some())
