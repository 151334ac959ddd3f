"""Which variables of Keras are assigned to meanwhile."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any


class assigned:
    """Collects those of the variables that are assigned to in the body."""

    def __init__(self, variables: Iterable[Any]) -> None:
        self._known = {id(one): one for one in variables}
        self._found: list[Any] = []

    def __enter__(self) -> list[Any]:
        import keras

        self._class = keras.Variable
        self._assign = original = keras.Variable.assign
        known, found = self._known, self._found

        @functools.wraps(original)
        def assign(variable: Any, value: Any) -> Any:
            if id(variable) in known and all(one is not variable for one in found):
                found.append(variable)
            return original(variable, value)

        keras.Variable.assign = assign
        return found

    def __exit__(self, *_: object) -> None:
        self._class.assign = self._assign


def is_float(variable: Any) -> bool:
    """Whether it holds fractions, as statistics do, and counters do not."""
    return str(variable.dtype).startswith(("float", "bfloat"))
