"""Which way is fastest for trials of one architecture: a few timed steps on the real data.

The stack that is timed is the one that will train, and is put back as it was. A model alone is
timed only if the stack is not clearly faster than any model alone could be. What packing gains is
worked out: workers run side by side as far as one model alone leaves processors idle.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..current_lease import current
from ..stacks.alone import Alone
from ..stacks.batches import Batches, Chunk

_STEPS = 8
"""Steps that are timed, after as many that are not."""
_LEAST = 0.0003
"""Seconds that a step of a model alone takes at least, however small it is: Keras' own work."""
_START = 2.0
"""Seconds in which a packed trial starts and is traced, about."""
_ROUNDS = 3
_SHARE = 0.5
"""Of a lease, for the variables of all models and what is computed with them."""
_COPIES = 6
"""How many times a model's weights are in memory at once: slots, gradients, new values."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one step."""

    wall: float
    processors: float
    """How many were busy meanwhile."""


@dataclass(frozen=True)
class Verdict:
    """The fastest way, and the evidence, in words."""

    way: str
    why: str


def judge(
    count: int,
    fused: float,
    alone: Timing | None,
    steps: int,
    processors: int,
    packable: bool,
) -> Verdict:
    """Choose for so many models that take `steps` steps each; `fused` is the seconds of a step of
    all of them as one. Pure."""
    each = fused / count
    if alone is None:
        return Verdict("fused", f"{_ms(each)} a model and step, less than any takes alone")
    side_by_side = max(1.0, min(processors / max(alone.processors, 0.1), processors, count))
    costs = {
        "fused": fused * steps,
        "serial": alone.wall * steps * count,
        "packed": (alone.wall * steps + _START) * count / side_by_side,
    }
    if not packable:
        del costs["packed"]
    way = min(costs, key=lambda name: costs[name])
    said = f"a model and step take {_ms(each)} as one, {_ms(alone.wall)} alone"
    if packable:
        said += f", {_ms(alone.wall / side_by_side)} packed"
    return Verdict(way, said)


def measure(
    trainer: Any, spare: Callable[[], Any], batches: Batches, epochs: int, packable: bool
) -> Verdict:
    """Time a trainer's stacks and, if that may be needed, a model that `spare` builds."""
    count = len(trainer.models)
    chunk, steps = _first(batches)
    fused = _timed_stacks(trainer, chunk).wall
    alone = None
    if fused / count > _LEAST:
        alone = _timed(Alone(spare()), chunk)
    return judge(count, fused, alone, steps * epochs, len(os.sched_getaffinity(0)), packable)


def most_in_lease(model: Any) -> int | None:
    """How many models of this kind a stack may have in the lease of this process; None without a
    lease. One that does not fit all the same is halved when it runs out of memory."""
    lease = current()
    if lease is None:
        return None
    size = sum(_size(variable) for variable in model.variables)
    room = max(lease.ceiling, getattr(lease, "most", 0) or 0) * _SHARE
    return max(1, int(room / max(1, size * _COPIES)))


def _size(variable: Any) -> int:
    """Bytes, as if every number had four."""
    return 4 * math.prod(int(dimension) for dimension in variable.shape)


def _first(batches: Batches) -> tuple[Chunk, int]:
    """A few steps of the data, and how many steps an epoch has."""
    chunk, steps = None, 0
    for one in batches.epoch():
        chunk = chunk or one
        steps += one.steps
    assert chunk is not None
    if chunk.steps > _STEPS:
        from keras.src import tree

        data = tree.map_structure(lambda part: part[:_STEPS], chunk.data)
        chunk = dataclasses.replace(chunk, data=data, steps=_STEPS)
    return chunk, steps


def _timed_stacks(trainer: Any, chunk: Chunk) -> Timing:
    """The step of all stacks of a trainer, one after the other; they are as they were after it."""
    timings = []
    for stack in trainer.members:
        with stack.unchanged():
            timings.append(_timed(stack, chunk))
    busy = max(one.processors for one in timings)
    return Timing(sum(one.wall for one in timings), busy)


def _timed(member: Any, chunk: Chunk) -> Timing:
    """The fastest of some rounds: whatever else the machine does only adds to it."""
    member.train(chunk)
    rounds = []
    for _ in range(_ROUNDS):
        wall, busy = time.perf_counter(), time.process_time()
        member.train(chunk)
        member.logs()  # Waits until all is computed.
        wall, busy = time.perf_counter() - wall, time.process_time() - busy
        rounds.append(Timing(wall / chunk.steps, busy / wall))
    return min(rounds, key=lambda one: one.wall)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
