"""Curves of a program's scalars, and of those of several runs: bounded, whatever is written."""

from collections.abc import Iterator

from msgspec import Struct

from sublet.event_file import Scalar

MOST_POINTS = 500
"""Of one curve."""
Point = tuple[int, float | None, float]
"""Step, value (None if it is not a number), and wall seconds."""


class Curve:
    """The points of one curve by step. Of more than can be kept, of each four in a row the lowest
    and the highest are: no peak is lost, and the last point always stays."""

    def __init__(self) -> None:
        self._points: list[Scalar] = []

    def add(self, point: Scalar) -> None:
        """Add the next one. A step that was there already began anew: what was behind it goes."""
        points = self._points
        while points and points[-1].step >= point.step:
            points.pop()
        points.append(point)
        if len(points) > 2 * MOST_POINTS:
            self._points = list(_thinned(points))

    def points(self) -> tuple[Point, ...]:
        """What is kept, by step."""
        points = self._points
        while len(points) > MOST_POINTS:
            points = list(_thinned(points))
        return tuple((one.step, _finite(one.value), round(one.at, 3)) for one in points)


def _thinned(points: list[Scalar]) -> Iterator[Scalar]:
    """About half of them: the extremes of each four."""
    *body, last = points
    for at in range(0, len(body), 4):
        four = body[at : at + 4]
        low = min(range(len(four)), key=lambda place: _order(four[place].value, 1))
        high = min(range(len(four)), key=lambda place: _order(four[place].value, -1))
        for place in sorted({low, high}):
            yield four[place]
    yield last


def _order(value: float, sign: int) -> float:
    """What is no number is never an extreme."""
    return sign * value if value == value else float("inf")


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


class CurveRow(Struct, frozen=True):
    """The curve of one run."""

    run: str
    points: tuple[Point, ...]


class TagRow(Struct, frozen=True):
    """The curves of all runs for one tag: one plot."""

    tag: str
    curves: tuple[CurveRow, ...]
