"""What preloaded packages have entered into registers of the standard library.

A program must not find loggers or finders of a package that it has not imported: `dictConfig`
disables all loggers that are there. They are hidden with their package, and given back with it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Container
from typing import Any


class Registers:
    """The loggers and finders of packages that are hidden."""

    def __init__(self, packages: Container[str]) -> None:
        self._loggers: dict[str, dict[str, logging.Logger]] = {}
        self._finders: dict[str, list[Any]] = {}
        known: dict[str, Any] = logging.root.manager.loggerDict
        for name in [name for name in known if _top(name) in packages]:
            # In place of a logger that was not asked for itself there is one that holds its place.
            if isinstance(logger := known.pop(name), logging.Logger):
                self._loggers.setdefault(_top(name), {})[name] = logger
        for finder in list(sys.meta_path):
            if (package := _top(type(finder).__module__)) in packages:
                self._finders.setdefault(package, []).append(finder)
                sys.meta_path.remove(finder)

    def give_back(self, package: str) -> None:
        """The program has imported this package."""
        for name, logger in self._loggers.pop(package, {}).items():
            _enter(name, logger)
        sys.meta_path += self._finders.pop(package, [])


def _enter(name: str, logger: logging.Logger) -> None:
    """Make it the logger of this name. If the program has asked for that before, the two become
    one: the package has this object, the program the other."""
    manager: Any = logging.root.manager
    found = manager.loggerDict.get(name)
    if isinstance(found, logging.Logger):
        logger.__dict__ = found.__dict__
        return
    manager.loggerDict[name] = logger
    if found is not None:
        manager._fixupChildren(found, logger)
    manager._fixupParents(logger)


def _top(name: str) -> str:
    return name.partition(".")[0]
