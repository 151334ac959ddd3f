"""The hook: waits in an interpreter until TensorFlow is imported there, and patches it then.

Owns the moment. Never imports TensorFlow by itself. Every Python child of a leased program pays
for this module at its start, so it imports nothing; what acts on TensorFlow is in `patches`.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def install() -> None:
    """Patch TensorFlow now if it is imported, else when it will be. Once is enough."""
    module = sys.modules.get("tensorflow")
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        _patch()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds nothing itself: lets the others find `tensorflow`, and acts when it has been loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "tensorflow":
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._act_after(spec.loader)
                return spec
        return None

    @staticmethod
    def _act_after(loader: Any) -> None:
        load = getattr(loader, "exec_module", None)
        if load is None:
            return

        def exec_module(module: Any) -> None:
            load(module)
            _patch()

        loader.exec_module = exec_module


def _patch() -> None:
    from .patches import apply

    apply()
