"""How a batch is cut: the arithmetic, without TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

KEPT_FREE = 0.35
"""The share of the limit that is not planned for: a pool gives a piece of up to twice the size that
was asked for, and no two steps are alike. Smaller micro-batches cost little; one that does not fit
may crash the program."""
_LEAST_ROOM = 0.25
"""Where data and weights take what is kept free, this share of the rest is planned for."""
_PETTY = 0.05
"""Rows that take less than this share of what any number of rows takes are not what makes a batch
too large."""
TRIED = (16, 8, 4)
"""To see what a step needs, these fractions of the batch are tried, as far as they fit."""
_NOISE = 0.8
"""A measurement that shows less than this share of what the one before shows is not believed: data
that are read ahead come and go meanwhile."""


@dataclasses.dataclass(frozen=True)
class Need:
    """The bytes that a step takes for so many rows: something for any, and so much for each."""

    fixed: float
    row: float

    def of(self, rows: int) -> float:
        return self.fixed + self.row * rows

    @classmethod
    def through(cls, points: Sequence[tuple[int, int]]) -> Need:
        """The need that explains what was measured: pairs of rows and bytes.

        One point says nothing about the fixed part. Then all is counted as the rows', so that the
        need of more rows is not underestimated.
        """
        (few, less), (many, more) = min(points), max(points)
        if many == few or more <= less:
            return cls(0.0, max(less, more) / few)
        row = (more - less) / (many - few)
        fixed = less - row * few
        return cls(fixed, row) if fixed >= 0 else cls(0.0, more / many)


def need_of(points: Sequence[tuple[int, int]], fixed: int) -> Need:
    """What a step needs, from pairs of rows and bytes, the fewest rows first, if `fixed` bytes are
    known not to depend on the rows. All else is taken for the rows', so that the need of more rows
    is not underestimated."""
    each = [max(0, taken - fixed) / rows for rows, taken in points]
    return Need(float(fixed), max(each[-1], _NOISE * each[-2] if len(each) > 1 else 0.0))


def largest_part(rows: int, most: int) -> int:
    """The rows of the largest of equal micro-batches with at most `most` rows."""
    pieces = -(-rows // max(1, most))
    return -(-rows // max(1, pieces))


def parts(rows: int, most: int) -> list[tuple[int, int]]:
    """The first row and the row after the last of each micro-batch."""
    if rows <= 0:
        return []
    size = largest_part(rows, most)
    return [(begin, min(begin + size, rows)) for begin in range(0, rows, size)]


def room_beside(limit: int, held: int) -> float:
    """The bytes that a step may take, if so many are held meanwhile."""
    return max((1 - KEPT_FREE) * limit - held, _LEAST_ROOM * (limit - held))


def fitting(rows: int, need: Need, room: float, split_cost: float = 0.0) -> int:
    """How many rows to take at a time: all if they fit into `room` bytes, else a half, a quarter,
    and so on, at least one; not fewer where that would hardly help. Micro-batches need `split_cost`
    bytes more."""
    if need.of(rows) <= room:
        return rows
    size = rows
    while size > 1 and not is_petty(size, need, split_cost):
        size = -(-size // 2)
        if need.of(size) + split_cost <= room:
            break
    return size


def is_petty(rows: int, need: Need, split_cost: float) -> bool:
    """Whether so many rows are not what makes a step too large."""
    return need.row * rows <= _PETTY * (need.fixed + split_cost)


def tried_rows(rows: int) -> list[int]:
    """With how many rows to measure what a step needs, the fewest first."""
    return sorted({max(1, rows // fraction) for fraction in TRIED})
