"""Packages that were imported before the fork, hidden until the program imports them.

A program must not find in `sys.modules` what it has not imported. So the nursery takes out what it
has imported for programs, and they get it back package by package when they import it. At that
moment the other effects of an import are repeated (`settings`).
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from .. import hook

Imported = Callable[[str], None]
"""Called with the name of each package that the program has just imported."""


class Needs:
    """Which packages were imported by which, as far as import statements tell."""

    def __init__(self) -> None:
        self._of: dict[str, set[str]] = {}
        self.missing: set[str] = set()
        """Modules that imports did not find. A program may have one beside its script."""

    def note(self, importer: str, imported: str) -> None:
        self._of.setdefault(_top(importer), set()).add(_top(imported))

    def all_of(self, package: str) -> list[str]:
        """The packages that an import of this one loads, dependencies first, itself last."""
        found: dict[str, None] = {}

        def visit(name: str, path: tuple[str, ...]) -> None:
            if name in found or name in path:
                return
            for needed in sorted(self._of.get(name, ())):
                visit(needed, (*path, name))
            found[name] = None

        visit(package, ())
        return list(found)

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """Note the import statements that run in the body, and calls of `import_module`."""
        original, by_name = builtins.__import__, importlib.import_module

        def noting(
            name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
        ) -> Any:
            importer = (globals or {}).get("__name__")
            if importer and not level:
                self.note(str(importer), name)
            with self._noting_missing():
                return original(name, globals, locals, fromlist, level)

        def noting_by_name(name: str, package: str | None = None) -> ModuleType:
            importer = sys._getframe(1).f_globals.get("__name__")
            if importer and not name.startswith("."):
                self.note(str(importer), name)
            with self._noting_missing():
                return by_name(name, package)

        builtins.__import__, importlib.import_module = noting, noting_by_name
        try:
            yield
        finally:
            builtins.__import__, importlib.import_module = original, by_name

    @contextlib.contextmanager
    def _noting_missing(self) -> Iterator[None]:
        try:
            yield
        except ModuleNotFoundError as error:
            if error.name and _top(error.name) not in sys.modules:
                self.missing.add(_top(error.name))
            raise


def give_back_all() -> None:
    """Put all preloaded packages into `sys.modules`, before several threads use them at once."""
    for finder in sys.meta_path:
        if isinstance(finder, Preloaded):
            finder.give_back_all()


class Preloaded(importlib.abc.MetaPathFinder):
    """The hidden modules, and the finder that gives them back."""

    def __init__(self, needs: Needs, imported: Imported) -> None:
        self._needs = needs
        self._imported = imported
        self._hidden: dict[str, dict[str, ModuleType]] = {}
        """By package, then by the module's full name."""
        self._brings: dict[str, list[str]] = {}
        """By package: the hidden packages that an import of it loads; itself last."""
        self._homes: dict[str, str | None] = {}
        self._loggers = HiddenLoggers({}, {})

    def hide(self, before: Iterable[str]) -> None:
        """Hide all third-party packages that were imported since `before`."""
        packages = {_top(name) for name in sys.modules} - {_top(name) for name in before}
        # Decided for all before the first is removed, as the decision needs sys.modules.
        third_party = {package for package in packages if _is_third_party(package)}
        for name, module in list(sys.modules.items()):
            if _top(name) in third_party:
                self._homes.setdefault(name, _home(module))
                self._hidden.setdefault(_top(name), {})[name] = sys.modules.pop(name)
        self._loggers = _hide_loggers(third_party)
        for package in self._hidden:
            brings = self._needs.all_of(package)
            self._brings[package] = [name for name in brings if name in self._hidden]
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        module = self._hidden.get(_top(name), {}).get(name)
        original = getattr(module, "__spec__", None)
        if module is None or original is None or self._is_shadowed(name):
            return None
        spec = importlib.machinery.ModuleSpec(
            name,
            _Loader(self, module, original),
            origin=original.origin,
            loader_state=original.loader_state,
            is_package=original.submodule_search_locations is not None,
        )
        spec.submodule_search_locations = original.submodule_search_locations
        spec.cached = original.cached
        spec.has_location = original.has_location
        return spec

    def give_back_all(self) -> None:
        """Put all packages into `sys.modules`."""
        for package in list(self._hidden):
            self.give_back(package)

    def give_back(self, package: str) -> None:
        """Put a package and all that it needs into `sys.modules`, as an import would."""
        names: list[str] = []
        for needed in self._brings[package]:
            self._loggers.give_back(needed)
            for name, module in self._hidden.pop(needed, {}).items():
                # A module that the program has imported from elsewhere stays.
                if sys.modules.setdefault(name, module) is module:
                    names.append(name)
        for name in names:
            if "." not in name:
                self._imported(name)
        hook.imported(names)

    def _is_shadowed(self, name: str) -> bool:
        """Whether the program's own `sys.path` has another module of this name first."""
        home = self._homes.get(name)
        if home is None or "." in name:
            return False
        for entry in sys.path:
            if entry == home:
                return False
            if importlib.machinery.PathFinder.find_spec(name, [entry]) is not None:
                return True
        return True


class HiddenLoggers(dict[str, Any]):
    """The table of loggers by name, without those of hidden packages. `getLogger` finds these, too.

    `logging.config` disables all listed loggers by default. A program that sets up its logging
    before it imports TensorFlow must not silence TensorFlow by that.
    """

    def __init__(self, listed: dict[str, Any], hidden: dict[str, dict[str, Any]]) -> None:
        super().__init__(listed)
        self._hidden = hidden
        """By package, then by name."""

    def __contains__(self, name: object) -> bool:
        of_package = self._hidden.get(_top(str(name)), {})
        if name in of_package:
            self[str(name)] = of_package.pop(str(name))
        return super().__contains__(name)

    def give_back(self, package: str) -> None:
        """List the loggers of a package that the program imports."""
        self.update(self._hidden.pop(package, {}))


def _hide_loggers(packages: Iterable[str]) -> HiddenLoggers:
    """Take the loggers of these packages out of the table."""
    listed: dict[str, Any] = {}
    hidden: dict[str, dict[str, Any]] = {package: {} for package in packages}
    for name, logger in logging.root.manager.loggerDict.items():
        hidden.get(_top(name), listed)[name] = logger
    logging.root.manager.loggerDict = found = HiddenLoggers(listed, hidden)
    return found


class _Loader(importlib.abc.Loader):
    """Gives back a preloaded module; in all else it acts as the module's own loader."""

    def __init__(self, preloaded: Preloaded, module: ModuleType, original: Any) -> None:
        self._preloaded = preloaded
        self._module = module
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original.loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        self._preloaded.give_back(_top(spec.name))
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        # The import machinery has set our spec.
        module.__spec__ = self._original


def _top(name: str) -> str:
    return name.partition(".")[0]


def _is_third_party(package: str) -> bool:
    """Not the standard library's, not ours, and with a spec (Cython's common types have none)."""
    if package in sys.stdlib_module_names or package in ("sublet", "__main__", "__mp_main__"):
        return False
    return getattr(sys.modules.get(package), "__spec__", None) is not None


def _home(module: ModuleType) -> str | None:
    """The entry of `sys.path` that a module comes from; None if it comes from elsewhere."""
    spec = module.__spec__
    if spec is None or spec.origin is None:
        return None
    path = os.path.dirname(spec.origin)
    if spec.submodule_search_locations is not None:
        path = os.path.dirname(path)
    return path if path in sys.path else None
