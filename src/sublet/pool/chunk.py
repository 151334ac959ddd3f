"""Several calls of one function that travel as one."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Row = tuple[Any, ...]
"""The arguments of one call."""


class Chunk:
    """Calls the function with each row; the first error ends it, and is the chunk's."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.func = function

    def __call__(self, rows: list[Row]) -> list[Any]:
        return [self.func(*row) for row in rows]


def chunks(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """The rows in lists of so many; the last may be shorter."""
    rest = iter(rows)
    while chunk := list(itertools.islice(rest, size)):
        yield chunk
