"""Repeats what imports do besides loading modules, when a program imports a preloaded package.

The nursery has imported it in its own environment, long before the program. Now the program's
variables, files and logging handlers count, and its random numbers are its own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ...formats import import_variables, lease_environment
from ..current_lease import say
from . import native_libraries
from .import_reads import Reads


class Settings:
    """What the imports of one nursery have read, and what is repeated for its programs."""

    def __init__(self, reads: Reads, blas: list[str]) -> None:
        self._reads = reads
        self._blas = blas
        self._loaded_with = {name: os.environ[name] for name in os.environ if self._counts(name)}
        self._warned: set[str] = set()
        with contextlib.suppress(Exception):
            _reset_logger(sys.modules["tensorflow.python.platform.tf_logging"])

    def imported(self, package: str) -> None:
        """Repeat the effects of importing this package, which the program has just done."""
        for name, value in self._reads.written.get(package, {}).items():
            # A package that also reads the variable only sets it if it is not set.
            if name not in self._reads.variables or name not in os.environ:
                os.environ[name] = value
        for _, set_again in self._reads.filters.get(package, ()):
            set_again()
        act: Callable[[], None] | None = getattr(self, f"_{package}", None)
        if act is not None:
            # Another version of the package may lack what is set here.
            with contextlib.suppress(Exception):
                act()
            self._warn()

    def _absl(self) -> None:
        if sys.version_info >= (3, 13) and os.isatty(0):
            importlib.import_module("rlcompleter")  # As `pdb` does, which absl imports.

    def _numpy(self) -> None:
        native_libraries.restore_blas_threads(self._blas, os.environ)
        mtrand: Any = sys.modules["numpy.random.mtrand"]
        mtrand._rand.seed()

    def _tensorflow(self) -> None:
        native_libraries.set_log_level(os.environ)
        # TensorFlow's logger gets a handler only if the root logger has none now.
        logger: Any = sys.modules["tensorflow.python.platform.tf_logging"]
        logger.get_logger()

    def _keras(self) -> None:
        if any(name in os.environ for name in import_variables.AGAIN if name.startswith("KERAS_")):
            _execute_again(sys.modules["keras.src.backend.config"])

    def _matplotlib(self) -> None:
        matplotlib: Any = sys.modules["matplotlib"]
        if os.path.isfile("matplotlibrc"):
            matplotlib.rcParams.update(matplotlib.rc_params())
            matplotlib.rcParamsOrig = matplotlib.rcParams.copy()
        if backend := os.environ.get("MPLBACKEND"):
            matplotlib.rcParams["backend"] = backend

    def _counts(self, name: str) -> bool:
        """Whether packages have read this variable for good."""
        if (
            name in import_variables.AGAIN
            or name in import_variables.HARMLESS
            or name.startswith("PYTHON")
        ):
            return False
        return import_variables.counts_when_loaded(name) or name in self._reads.variables

    def _warn(self) -> None:
        """Report variables that the program has set too late to have an effect."""
        for name, value in lease_environment.without_fence(os.environ).items():
            usual = self._loaded_with.get(name, import_variables.DEFAULTS.get(name, ""))
            if value not in ("", usual) and name not in self._warned and self._counts(name):
                self._warned.add(name)
                say(
                    f"{name}={value} changes nothing: the package that reads it was loaded before "
                    "the program; `sublet run --cold` loads it anew"
                )


def _reset_logger(module: Any) -> None:
    """Have TensorFlow set up its logger again when the program imports it."""
    for handler in list(module._logger.handlers):
        module._logger.removeHandler(handler)
    module._logger = None


def _execute_again(module: ModuleType) -> None:
    """Give a module the settings that it would have if it were imported now."""
    spec = module.__spec__
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    for name, value in fresh.__dict__.items():
        if name.startswith("_") and name[1:].isupper() and name != "_BACKEND":
            module.__dict__[name] = value
