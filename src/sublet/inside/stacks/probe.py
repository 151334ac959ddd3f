"""Whether models are trained faster as one or one after the other: found out with a few steps of
each way, on the data and the device that they will be trained with. No model is changed by it."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from .. import oom
from ..training import memory
from .alone import Alone
from .batches import Batches, Chunk
from .group import Group, parts, serial
from .stack import Stack
from .trainer import CannotStack

_LEAST = 0.05
"""So many seconds are measured at once, at the least."""
_ROUNDS = 3
"""Both ways are measured in turns, so often; the fastest round of each counts."""
_STEPS = 256
"""No more steps than this are measured at once."""
_USUAL = 100
"""Steps of an epoch, if nobody knows how many there are."""
_OF_LIMIT = 0.9
"""The share of the lease that stacks are planned for."""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What a probe has found."""

    models: int
    epochs: int
    fused: float | None
    """Seconds for an epoch of one model, in a stack of `size`; None if there can be none."""
    serial: float
    """The same, one after the other."""
    serial_start: float
    """Seconds until the first step of each model that is trained one after the other."""
    size: int
    """The largest stack that fits, up to all models."""
    memory: int
    """Bytes that one more model takes in a stack; 0 if nobody counts them."""
    limit: int | None
    """Bytes that stacks may take together; None without a lease."""
    why: str = ""
    """Why there can be no stack: the layer and the reason."""

    @property
    def ways(self) -> dict[str, float]:
        """Seconds that are left after the probe, for all epochs of all models."""
        work = self.models * self.epochs
        found = {"serial": self.serial * work + self.serial_start * (self.models - 1)}
        if self.fused is not None:
            found["fused"] = self.fused * work
        return found

    @property
    def choice(self) -> str:
        """The faster way: `fused` or `serial`."""
        return min(self.ways, key=self.ways.__getitem__)

    def __str__(self) -> str:
        one = f"serial {self.serial * 1000:.3g} ms"
        if self.fused is None:
            return f"{one} for a model and epoch; no stack: {self.why}"
        taken = f"; one more model takes {self.memory / 2**20:.3g} MiB" if self.memory else ""
        return (
            f"fused {self.fused * 1000:.3g} ms, {one} for a model and epoch: {self.choice}, "
            f"stacks of {self.size}{taken}"
        )


def chosen(models: Sequence[Any], batches: Batches, epochs: int = 1) -> tuple[Group, Evidence]:
    """A trainer of these models in the faster way, and how it was found."""
    alone = Alone(models[0])
    alone.build(batches.like(1))
    kept = [(one, one.numpy()) for one in _variables(models[0])]
    try:
        stack, found = _measured(models, batches, epochs, alone)
    finally:
        for variable, value in kept:
            variable.assign(value)
    if stack is None or found.choice == "serial":
        return serial(models), found
    stack.restart()
    return _with_others(stack, models, batches), found


def probe(models: Sequence[Any], batches: Batches, epochs: int = 1) -> Evidence:
    """What `chosen` would find."""
    return chosen(models, batches, epochs)[1]


def _measured(
    models: Sequence[Any], batches: Batches, epochs: int, alone: Alone
) -> tuple[Stack | None, Evidence]:
    """The stack that was timed, and what was found; model and stack have taken steps."""
    limit = memory.limit()
    free = None if limit is None else int(_OF_LIMIT * limit) - memory.in_use()
    start, taken = _started(alone, batches.like(1))
    # A stack has the new values of all variables before it changes any.
    each = taken + 2 * sum(one.numpy().nbytes for one in _variables(models[0]))
    most = len(models) if free is None else max(1, min(len(models), free // max(1, each)))
    stack, taken, why = _stack(models, batches, most)
    steps = batches.steps or _USUAL
    some = batches.like(1, _count(alone, batches, 1))
    if stack is not None:
        all_models = batches.like(len(models), _count(stack, batches, len(models)))
    fused, single = math.inf, math.inf
    for _ in range(_ROUNDS):
        single = min(single, _timed(alone.train, some))
        if stack is not None:
            fused = min(fused, _timed(stack.train, all_models) / len(stack.models))
    found = Evidence(
        len(models),
        epochs,
        None if stack is None else fused * steps,
        single * steps,
        start,
        1 if stack is None else len(stack.models),
        0 if stack is None else max(taken, 0) // len(stack.models),
        limit,
        why,
    )
    return stack, found


def _stack(models: Sequence[Any], batches: Batches, most: int) -> tuple[Stack | None, int, str]:
    """The largest stack that fits, the bytes that a step of it takes, and why there is none."""
    while True:
        first, orders = next(parts(models, -(-len(models) // most)))
        try:
            stack = Stack(first, batches, orders)
            _, taken = _started(stack, batches.like(len(models)))
        except CannotStack as wrong:
            return None, 0, str(wrong)
        except tf.errors.OpError as error:
            if not oom.is_oom(str(error)) or len(first) < 2:
                raise
            most = len(first) // 2
            continue
        return stack, taken, ""


def _with_others(stack: Stack, models: Sequence[Any], batches: Batches) -> Group:
    """The stack, and more of its size for the models that are not in it."""
    count = -(-len(models) // len(stack.models))
    others = [
        Stack(part, batches, orders)
        for part, orders in parts(models, count)
        if part[0] is not models[0]
    ]
    return Group([stack, *others])


def _started(trainer: Stack | Alone, chunk: Chunk) -> tuple[float, int]:
    """Take the first step: the seconds and the bytes that it takes."""
    begin = time.perf_counter()
    taken = memory.taken_by(lambda: trainer.train(chunk))
    return time.perf_counter() - begin, taken


def _count(trainer: Stack | Alone, batches: Batches, models: int) -> int:
    """How many steps take long enough for what a call costs not to count."""
    seconds = max(_timed(trainer.train, batches.like(models, 2)), 1e-6)
    return max(2, min(_STEPS, math.ceil(_LEAST / seconds)))


def _timed(train: Callable[[Chunk], None], chunk: Chunk) -> float:
    """The seconds of one step."""
    begin = time.perf_counter()
    train(chunk)
    return (time.perf_counter() - begin) / chunk.steps


def _variables(model: Any) -> list[Any]:
    return [*model.variables, *model.optimizer.variables]
