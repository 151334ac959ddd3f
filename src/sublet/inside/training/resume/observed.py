"""What callbacks remember: those attributes that have changed since the training began, as far as
they are numbers, text, arrays, or lists, tuples and dicts of them.

What has not changed is what the program has said, and may say differently the next time.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

from .values import NotPlain, Packer, same, unpack


class Observed:
    """The callbacks of one training, from when all of them have begun."""

    def __init__(self, callbacks: list[Any]) -> None:
        self._callbacks = dict(zip(_names(callbacks), callbacks, strict=True))
        self._begun = {name: copy.deepcopy(_plain(one)) for name, one in self._callbacks.items()}

    def packed(self, packer: Packer) -> Any:
        """What they remember now."""
        changed = {}
        for name, callback in self._callbacks.items():
            begun = self._begun[name]
            changed[name] = {
                attribute: value
                for attribute, value in _plain(callback).items()
                if attribute not in begun or not same(value, begun[attribute])
            }
        return packer.pack(changed)

    def put_back(self, packed: Any, array: Callable[[int], Any]) -> None:
        """Have those that are here remember what they did."""
        for name, attributes in unpack(packed, array).items():
            if name in self._callbacks:
                _set_up(self._callbacks[name])
                for attribute, value in attributes.items():
                    setattr(self._callbacks[name], attribute, value)


def _set_up(callback: Any) -> None:
    """Have EarlyStopping and its like find out whether less is better. They do so at the end of
    their first epoch, and change the sign of `min_delta`, which is to happen once."""
    if getattr(callback, "monitor_op", True) is None:
        with contextlib.suppress(AttributeError, ValueError):
            callback._set_monitor_op()


def _names(callbacks: list[Any]) -> list[str]:
    """A name for each: its class, and which one of its class it is."""
    classes = [type(one).__name__ for one in callbacks]
    return [f"{name} {classes[:at].count(name) + 1}" for at, name in enumerate(classes)]


def _plain(callback: Any) -> dict[str, Any]:
    found = {}
    for attribute, value in vars(callback).items():
        with contextlib.suppress(NotPlain):
            Packer().pack(value)
            found[attribute] = value
    return found
