"""How many rows a step of a model takes at a time: measured, corrected and remembered.

A step that runs out of memory costs ten seconds, in which TensorFlow's allocator waits, and some
operations crash instead of failing. So before the first step small parts of the batch are computed
and dropped, and what they took says what the batch will take.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ..current_lease import say
from . import batch, memory, sizes
from .remembered import Remembered
from .sizes import Need

Try = Callable[[int], object]
"""Computes so many rows and drops the result."""
_MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Choice:
    """For batches of up to so many rows, of up to so many elements each: how many at a time."""

    cells: int
    rows: int
    most: int


class MicroBatches:
    """The choices for one verb (training, evaluating, predicting) of one model."""

    def __init__(self, verb: str, name: str, remembered: Remembered, at_once: int = 1) -> None:
        self.verb = verb
        self.name = name
        self._remembered = remembered
        self._at_once = at_once
        """How many micro-batches are computed in the same memory at the same time."""
        self._choices: list[Choice] = []
        self._petty = 0
        """So many rows were measured not to be what makes a step too large: where these do not fit,
        no more are tried than one."""
        self._said = (0, 0)

    def most(self, data: Any, attempt: Try, split_cost: int) -> int:
        """How many rows of this batch to take at a time. Raises what `attempt` raises if not even
        one row fits."""
        rows, cells = batch.count(data), batch.cells(data)
        for choice in sorted(self._choices, key=lambda one: one.cells):
            if choice.cells >= cells and choice.rows >= rows:
                return rows if choice.most == choice.rows else min(rows, choice.most)
        limit = memory.limit()
        if limit is None:
            most = rows
        else:
            key = f"{self.name} {self.verb} {rows} {cells}"
            known = self._remembered.get(key, limit)
            most = known or self._measured(rows, attempt, split_cost)
            if not known:
                # A lease that has grown meanwhile may not do so again.
                self._remembered.keep(key, most, memory.limit() or limit)
        self._choices.append(Choice(cells, rows, min(rows, most)))
        return min(rows, most)

    def failed(self, data: Any, most: int) -> int:
        """How many rows to take after `most` were too many; 0 if there is nothing less."""
        smaller = 0 if most == 1 else 1 if most <= self._petty else -(-most // 2)
        rows, cells = batch.count(data), batch.cells(data)
        kept = [one for one in self._choices if one.cells < cells]
        self._choices = [*kept, Choice(cells, rows, max(1, smaller))]
        if smaller:
            key = f"{self.name} {self.verb} {rows} {cells}"
            self._remembered.keep(key, smaller, memory.limit() or 0)
        return smaller

    def choices(self) -> list[list[int]]:
        """What was chosen so far, for `choose`."""
        return [list(dataclasses.astuple(one)) for one in self._choices]

    def choose(self, choices: list[list[int]]) -> None:
        """Choose what was chosen before."""
        self._choices = [Choice(*one) for one in choices]

    def tell(self, rows: int, most: int, unequal: str) -> None:
        """Say how batches of so many rows are computed, once; a short last one goes without."""
        said_rows, said_most = self._said
        if rows <= said_rows and most >= min(rows, said_most):
            return
        self._said = (rows, most)
        limit = memory.limit()
        room = "memory" if limit is None else f"{limit // _MIB} MiB"
        pieces, size = len(sizes.parts(rows, most)), sizes.largest_part(rows, most)
        but = f"; {unequal}" if unequal else ""
        say(
            f"batches of {rows} do not fit in {room}; "
            f"{self.verb} in {pieces} micro-batches of {size}{but}"
        )

    def _measured(self, rows: int, attempt: Try, split_cost: int) -> int:
        """What fits, by what a few rows take."""
        points: list[tuple[int, int]] = []
        need = Need(0.0, 0.0)
        for few in sizes.tried_rows(rows):
            if points and need.of(few) > self._room():
                break
            try:
                points.append((few, _taken(attempt, few)))
            except MemoryError:
                if few == 1 and not points:
                    raise
                break
            need = sizes.need_of(points, split_cost)
        if not points:
            need = sizes.need_of([(1, _taken(attempt, 1))], split_cost)
        if need.of(rows) > self._room() and memory.can_grow():
            memory.reserve(int(self._at_once * need.of(rows) / (1 - sizes.KEPT_FREE)))
        most = sizes.fitting(rows, need, self._room(), split_cost)
        self._petty = most if sizes.is_petty(most, need, split_cost) else 0
        return most

    def _room(self) -> float:
        return sizes.room_beside(memory.limit() or 0, memory.in_use()) / self._at_once


def _taken(attempt: Try, rows: int) -> int:
    """The most bytes that so many rows take. The first call does not count: it builds a graph."""
    attempt(rows)
    return max(memory.taken_by(lambda: attempt(rows)) for _ in range(2))
