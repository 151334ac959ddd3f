"""Ends a program that was forked warm: as a fresh interpreter does, but without finalising
preloaded modules, whose memory the kernel frees at once.

A program that returns, or ends by an exception, is finalised here, in the interpreter's order. One
that raises SystemExit is ended by CPython itself, which alone knows the exit code; we only keep the
preloaded modules out of that. A program that has loaded native libraries of its own gets the
interpreter's whole finalisation, because such a library may depend on it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib.machinery
import os
import signal
import sys
import threading
import types
import weakref
from dataclasses import dataclass
from typing import NoReturn

from .. import measure
from . import trampoline

_SPECIAL = (
    "path",
    "argv",
    "ps1",
    "ps2",
    "last_type",
    "last_value",
    "last_traceback",
    "path_hooks",
    "path_importer_cache",
    "meta_path",
    "__interactivehook__",
)
"""Attributes of `sys` that the interpreter drops before it drops modules."""
_FINALISED = frozenset({"sys", "builtins", "io", "_io", "encodings", "codecs", "threading"})
"""Modules that the interpreter itself uses at its end."""


@dataclass(frozen=True)
class Ending:
    """The modules and native libraries of one nursery, which its programs do not finalise."""

    modules: frozenset[str]
    natives: frozenset[str]

    @classmethod
    def now(cls) -> Ending:
        """What is loaded now, after the preload."""
        return cls(frozenset(sys.modules) - {"__main__"}, _natives())

    def watch(self) -> None:
        """Register the exit handler that runs last."""
        atexit.register(self._before_finalisation)

    def end(self, result: int) -> int:
        """End a program that returned `result` (see `trampoline`). Returns the exit code only if
        the interpreter has to end itself. A fault of ours is told, and changes no exit code."""
        try:
            return self._end(result)
        except Exception as fault:
            with contextlib.suppress(Exception):
                print(
                    f"sublet: the end of the program was not noted: {fault!r}", file=sys.__stderr__
                )
            _flush()
            ctypes.CDLL(None).fflush(None)
            os._exit(_code(result))

    def _end(self, result: int) -> int:
        if self._has_own_natives():
            return exit_code(result)
        measure.mark_exit(_code(result))
        atexit.unregister(self._before_finalisation)
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        if not _flush():
            return exit_code(result)  # The interpreter reports the error.
        code, interrupted = _code(result), _is_interrupted(result)
        self._finalise_modules()
        _flush()
        ctypes.CDLL(None).fflush(None)
        if interrupted:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(code)

    def _has_own_natives(self) -> bool:
        return not _natives() <= self.natives

    def _finalise_modules(self) -> None:
        """Drop the program's modules as the interpreter does: first those without references, then
        the names in the others, the last imported first."""
        _keep([sys.modules.pop(name) for name in self.modules if name in sys.modules])
        own = [weakref.ref(module) for module in sys.modules.values() if _is_module(module)]
        for name in _SPECIAL:
            setattr(sys, name, None)
        for stream in ("stdin", "stdout", "stderr"):
            setattr(sys, stream, getattr(sys, f"__{stream}__", None))
        sys.modules.clear()
        gc.collect()
        for reference in reversed(own):
            module = reference()
            if module is not None:
                with contextlib.suppress(Exception):
                    _clear(module)
        gc.collect()

    def _before_finalisation(self) -> None:
        """CPython is about to end the interpreter. We do not know the exit code, so the C library
        is set up to write it down."""
        libc = ctypes.CDLL(None)
        libc.fflush(None)
        if not self._has_own_natives():
            _keep([sys.modules.pop(name) for name in self.modules - _FINALISED & {*sys.modules}])
            libc.on_exit(libc._exit, None)
        if (path := measure.status_path()) is not None:
            libc.fopen.restype = ctypes.c_void_p
            file = ctypes.c_void_p(libc.fopen(os.fsencode(path), b"we"))
            if file:
                libc.setbuf(file, None)
                # Called first, with the exit code and the file, in this order.
                libc.on_exit(libc.putw, file)


def leave(code: int) -> NoReturn:
    """End the process at once, without waiting for threads, exit handlers or TensorFlow."""
    measure.mark_exit(code)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(code)


def exit_code(result: int) -> int:
    """Note and return the exit code. After Ctrl-C, the process is set up to end by the signal."""
    measure.mark_exit(_code(result))
    if not _is_interrupted(result):
        return _code(result)
    libc = ctypes.CDLL(None)
    # Called with the exit code, when the interpreter has been taken apart.
    libc.on_exit(getattr(libc, "raise"), None)
    return int(signal.SIGINT)


def _is_interrupted(result: int) -> bool:
    """Whether an uncaught KeyboardInterrupt has ended the program."""
    last = getattr(sys, "last_value", None)
    return result == trampoline.FAILED and isinstance(last, KeyboardInterrupt)


def _code(result: int) -> int:
    if _is_interrupted(result):
        return 128 + signal.SIGINT
    return 1 if result == trampoline.FAILED else result


def _keep(thing: object) -> None:
    """Never free this object."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _flush() -> bool:
    """Flush the streams; False if that failed."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except Exception:
        return False
    return True


def _clear(module: types.ModuleType) -> None:
    """Drop a module's names, those with a leading underscore first."""
    names = list(module.__dict__)
    for name in names:
        if name.startswith("_") and not name.startswith("__"):
            module.__dict__[name] = None
    for name in names:
        if name != "__builtins__":
            module.__dict__[name] = None


def _is_module(module: object) -> bool:
    return isinstance(module, types.ModuleType)


def _natives() -> frozenset[str]:
    """The native libraries behind the imported modules."""
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return frozenset(file for file in files if isinstance(file, str) and file.endswith(suffixes))
