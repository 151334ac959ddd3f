"""Loggers of packages that were imported before the fork, not listed until the program has them.

`logging.config` disables all loggers that there are, unless it is told not to. A program that sets
up its logging before it imports TensorFlow must not silence TensorFlow by that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any


class HiddenLoggers(dict[str, Any]):
    """The table of all loggers by name. Who asks for a hidden one by its name gets it."""

    def __init__(self, listed: dict[str, Any], hidden: dict[str, dict[str, Any]]) -> None:
        super().__init__(listed)
        self._hidden = hidden
        """By package, then by name."""

    def __contains__(self, name: object) -> bool:
        of_package = self._hidden.get(_package(str(name)), {})
        if name in of_package:
            self[str(name)] = of_package.pop(str(name))
        return super().__contains__(name)

    def give_back(self, package: str) -> None:
        """List the loggers of a package that the program has just imported."""
        self.update(self._hidden.pop(package, {}))


def hide(packages: Iterable[str]) -> HiddenLoggers:
    """Take the loggers of these packages out of the list."""
    listed: dict[str, Any] = {}
    hidden: dict[str, dict[str, Any]] = {package: {} for package in packages}
    for name, logger in logging.root.manager.loggerDict.items():
        hidden.get(_package(name), listed)[name] = logger
    logging.root.manager.loggerDict = found = HiddenLoggers(listed, hidden)
    return found


def _package(name: str) -> str:
    return name.partition(".")[0]
