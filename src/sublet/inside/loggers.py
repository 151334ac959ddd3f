"""Loggers of packages that were imported before the fork, not listed until the program has them.

`logging.config` disables all loggers that there are, unless it is told not to. A program that sets
up its logging before it imports TensorFlow must not silence TensorFlow by that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any


class Loggers(dict[str, Any]):
    """The table of all loggers by name. Who asks for a hidden one by its name gets it."""

    def __init__(self, listed: dict[str, Any], hidden: dict[str, Any]) -> None:
        super().__init__(listed)
        self._hidden = hidden

    def __contains__(self, name: object) -> bool:
        if name in self._hidden:
            self._list(str(name))
        return super().__contains__(name)

    def give_back(self, package: str) -> None:
        """List the loggers of a package that the program has just imported."""
        for name in [name for name in self._hidden if name.partition(".")[0] == package]:
            self._list(name)

    def _list(self, name: str) -> None:
        self[name] = self._hidden.pop(name)


def hide(packages: Iterable[str]) -> Loggers:
    """Take the loggers of these packages out of the list."""
    chosen = set(packages)
    listed: dict[str, Any] = {}
    hidden: dict[str, Any] = {}
    for name, logger in logging.root.manager.loggerDict.items():
        (hidden if name.partition(".")[0] in chosen else listed)[name] = logger
    logging.root.manager.loggerDict = found = Loggers(listed, hidden)
    return found
