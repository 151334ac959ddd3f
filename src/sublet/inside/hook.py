"""Patches TensorFlow when a program imports it; never imports it itself.

Every Python child of a leased program loads this module at its start, so it imports nothing. The
patches are in `patches`.
"""

from __future__ import annotations

import atexit
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


_MACHINERY = "<frozen importlib._bootstrap>"
_WRITERS = ("tensorboard.summary.writer.event_file_writer", "tensorboardX.event_file_writer")
"""Modules with a writer of event files; TensorFlow's own is patched with all the rest."""


def install() -> None:
    """Patch TensorFlow now if it is imported, else as soon as it is. Note what ends the program."""
    atexit.unregister(_note_error)
    atexit.register(_note_error)
    if not any(act is _patch for finder in _finders() for _, act in finder.waiting):
        when_imported("tensorflow", _patch)
        for name in _WRITERS:
            when_imported(name, _watch_writers)


def when_imported(name: str, act: Callable[[], object]) -> None:
    """Call `act` now if the package `name` is imported, else as soon as it is."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        act()
        return
    for finder in _finders():
        finder.waiting.append((name, act))
        return
    sys.meta_path.insert(0, _Finder([(name, act)]))


def imported(names: list[str]) -> None:
    """Act on modules that were imported without a finder (`preloaded`)."""
    for finder in _finders():
        for name, act in finder.waiting:
            if name in names:
                act()


def _finders() -> list[_Finder]:
    return [finder for finder in sys.meta_path if isinstance(finder, _Finder)]


class _Finder:
    """Finds nothing itself: lets others find a package, and acts when it has been loaded."""

    def __init__(self, waiting: list[tuple[str, Callable[[], object]]]) -> None:
        self.waiting = waiting

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not any(name == awaited for awaited, _ in self.waiting):
            return None
        # Those behind this one: another of its kind would ask this one again, and so on for ever.
        place = next(at for at, finder in enumerate(sys.meta_path) if finder is self)
        for finder in sys.meta_path[place + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                self._act_after(name, spec.loader)
                return spec
        return None

    def _act_after(self, name: str, loader: Any) -> None:
        load = getattr(loader, "exec_module", None)
        if load is None:
            return

        def exec_module(module: Any) -> None:
            load(module)
            for awaited, act in self.waiting:
                if awaited == name:
                    act()

        # Python leaves frames of the import machinery out of tracebacks.
        code = exec_module.__code__.replace(co_filename=_MACHINERY)
        exec_module.__code__ = code
        loader.exec_module = exec_module


def _note_error() -> None:
    """Write down the exception that ends the program, if one does: Python keeps it there."""
    error = getattr(sys, "last_value", None)
    if error is None:
        return
    try:
        from ..formats import last_error
        from .current_lease import current

        if (lease := current()) is not None:
            last_error.write(lease.dir, error)
    except Exception:
        return  # The program has ended as it would have.


def _patch() -> None:
    from .patches import apply

    apply()


def _watch_writers() -> None:
    from .event_writers import watch_modules

    watch_modules(_WRITERS)
