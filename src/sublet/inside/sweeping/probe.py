"""Which way is fastest for trials of one architecture: a few timed steps on the real data.

The stack that is timed is the one that will train, and is put back as it was. A model alone is
timed only if the stack is not clearly faster than any model alone could be; it comes first, and the
stack is never made, if the model is large and keeps all processors busy by itself. What packing
gains is worked out from that, and measured with real workers where it would decide.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ..current_lease import current
from ..parts.calls import Graph
from ..stacks.alone import Alone
from ..stacks.batches import Chunk
from ..training import memory

LEAST = 0.0003
"""Seconds that a step of a model alone takes at least, however small it is: Keras' own work."""
_ONCE = 0.05
"""So many seconds are measured at once, at the least: a call's own cost does not count then."""
_STEPS, _ROUNDS, _LONGEST = 64, 3, 0.5
"""The most steps at once; how often; and no further round after so many seconds."""
WORKER = 1.5
"""Seconds in which a worker starts, about; its model is traced after that."""
_BESIDE = 1.0
"""Seconds in which workers are timed beside each other."""
_WORTH = 30.0
"""A sweep that takes fewer seconds than this is not worth measuring workers."""
_NEAR = 1.3
"""How many times as long as the best packing may seem to take and still be measured."""
_BUSY = 0.85
"""The share of all processors that a model alone keeps busy if a stack can gain nothing."""
_LARGE = 5e8
"""Operations of a step of a model that is timed alone first."""
_SHARE = 0.8
"""Of a lease, for all models of a stack."""
_COPIES = 6
"""How many times a model's weights are in memory at once: slots, gradients, new values."""


@dataclass(frozen=True)
class Timing:
    """What a few steps have shown."""

    start: float
    """Seconds until the first step was done: tracing, most of it."""
    step: float
    """Seconds of each step after it."""
    processors: float = 1.0
    """How many were busy meanwhile."""

    @property
    def work(self) -> float:
        """Seconds of a step if nobody else had used the machine, about."""
        return self.step * min(1.0, self.processors)


@dataclass(frozen=True)
class Verdict:
    """The fastest way, the seconds that it will take, and the evidence, in words."""

    way: str
    seconds: float
    why: str


Pack = Callable[[], Timing | None]
"""Measures steps in as many workers as there can be, side by side; None if that failed."""


def judge(
    count: int,
    steps: int,
    processors: int,
    fused: Timing | None,
    alone: Timing | None,
    pack: Pack | None,
) -> Verdict:
    """Choose for so many models that take `steps` steps each. `fused` is of all of them as one,
    None if they cannot be that or will not gain by it; `alone` is of one, None if `fused` is
    faster than any model alone could be. Without `pack` they cannot be packed."""
    if alone is None:
        assert fused is not None
        each = f"{_ms(fused.step / count)} a model and step, less than any takes alone"
        return Verdict("fused", fused.step * steps, each)
    said = [f"{_ms(alone.step)} alone"]
    costs = {"serial": (alone.start + alone.step * steps) * count}
    if fused is not None:
        said.insert(0, f"{_ms(fused.step / count)} as one")
        costs["fused"] = fused.step * steps
    else:
        said[0] += f", which keeps {alone.processors:.2g} of {processors} processors busy"
    if pack is not None:
        workers = min(processors, count)
        slower = max(1.0, alone.processors * workers / processors)
        packed: Timing | None = Timing(WORKER + alone.start, alone.step * slower)
        assert packed is not None
        best, turns = min(costs.values()), -(-count // workers)
        cost = turns * (packed.start + packed.step * steps)
        word = "about "
        if best > _WORTH and cost < best * _NEAR and (packed := pack()) is not None:
            cost, word = turns * (packed.start + packed.step * steps), ""
        if packed is not None:
            said.append(f"{word}{_ms(packed.step / workers)} packed")
            costs["packed"] = cost
    way = min(costs, key=costs.__getitem__)
    return Verdict(way, costs[way], f"a model and step take {', '.join(said)}")


def timed(member: Any, chunk: Chunk) -> Timing:
    """Time some steps of a trainer: the fastest round, as whatever else the machine does only adds
    to it."""
    begin = time.perf_counter()
    member.train(chunk.first(1))
    start = time.perf_counter() - begin
    steps = max(1, min(_STEPS, chunk.steps, math.ceil(_ONCE / _round(member, chunk.first(1))[0])))
    some, best = chunk.first(steps), (math.inf, 0.0)
    until = time.perf_counter() + _LONGEST
    for _ in range(_ROUNDS):
        best = min(best, _round(member, some))
        if time.perf_counter() > until:
            break
    return Timing(start, best[0] / steps, best[1])


def timed_in_worker(model: Any, chunk: Chunk, ordered: float) -> Timing:
    """Time a model beside others that begin at about the same time, in workers of their own;
    `ordered` is when that was, by the clock."""
    member = Alone(model)
    member.train(chunk.first(1))
    start, steps = time.time() - ordered, 0
    begin = now = time.perf_counter()
    while now - begin < _BESIDE:
        member.train(chunk.first(1))
        steps, now = steps + 1, time.perf_counter()
    return Timing(start, (now - begin) / steps)


def timed_alone(model: Any, chunk: Chunk) -> Timing:
    """Time some steps of a model by itself, which it will have taken."""
    return timed(Alone(model), chunk)


def is_large(model: Any, chunk: Chunk) -> bool:
    """Whether a step of this model is so much work that the stack may gain nothing."""
    if tf.config.list_physical_devices("GPU"):
        return False  # How busy a GPU is, no processor time tells.
    rows = _rows(chunk)
    work = sum(_weights(one.operation) * _positions(one) for one in Graph.of(model).calls)
    return work * rows * 6 > _LARGE  # Once forward and twice back, to multiply and to add.


def keeps_all_busy(alone: Timing) -> bool:
    """Whether one model leaves nothing for others."""
    return alone.processors > _BUSY * len(os.sched_getaffinity(0))


def most_in_lease(model: Any, chunk: Chunk) -> int | None:
    """How many models of this kind a stack may have in the lease of this process; None without a
    lease. One that does not fit all the same is halved when it runs out of memory."""
    lease = current()
    if lease is None:
        return None
    room = max(memory.limit() or lease.ceiling, getattr(lease, "most", 0) or 0) * _SHARE
    weights = sum(math.prod(variable.shape) for variable in model.variables)
    between = sum(_size(symbol) for one in Graph.of(model).calls for symbol in one.symbols)
    each = 4 * (weights * _COPIES + 2 * between * _rows(chunk))
    return max(1, int((room - memory.in_use()) / max(1, each)))


def _round(member: Any, chunk: Chunk) -> tuple[float, float]:
    """The seconds of a call, and how many processors were busy."""
    wall, busy = time.perf_counter(), time.process_time()
    member.train(chunk)
    wall, busy = time.perf_counter() - wall, time.process_time() - busy
    return wall, busy / wall


def _rows(chunk: Chunk) -> int:
    return int(tf.nest.flatten(chunk.alone().data)[0].shape[1])


def _weights(layer: Any) -> int:
    return sum(math.prod(one.shape) for one in getattr(layer, "trainable_variables", ()))


def _positions(call: Any) -> int:
    """How often a layer's weights are used for a row: places of a picture, steps of a sequence."""
    taken = call.arguments.keras_tensors
    return max(
        (math.prod(n or 1 for n in one.shape[1:-1]) for one in (*taken, *call.symbols)), default=1
    )


def _size(symbol: Any) -> int:
    return math.prod(n or 1 for n in symbol.shape[1:])


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
