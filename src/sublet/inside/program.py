"""Being the user's program in a process that was forked warm.

The program must not be able to tell: argv, environment, streams, path, `__main__`, tracebacks,
signals, exit code and what is flushed at the end are as in a fresh `python train.py`. Where that
cannot be had, the process becomes a fresh interpreter (exec), with the same number and streams.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib.machinery
import importlib.util
import io
import linecache
import locale
import os
import signal
import sys
import threading
import types
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from . import measure, threads, title

_PLAIN_LOCALES = ("C", "POSIX", "C.UTF-8", "C.utf8", "UTF-8")
"""Those for which CPython reads and writes its streams with `surrogateescape`."""


@dataclass(frozen=True)
class Interpreter:
    """The nursery's interpreter as it was before it imported anything for others."""

    path: tuple[str, ...]
    modules: frozenset[str] = frozenset()
    tops: frozenset[str] = frozenset()
    natives: frozenset[str] = frozenset()
    blas: tuple[str, ...] = ()

    @classmethod
    def remember(cls) -> Interpreter:
        """Call before the preload."""
        return cls(tuple(entry for entry in sys.path if entry))

    def after_preload(self) -> Interpreter:
        """Call after the preload: what a program finds already imported."""
        modules = frozenset(sys.modules)
        tops = {name for name in modules if "." not in name} - set(sys.builtin_module_names)
        tops.remove("__main__")  # Nobody's: each program brings its own.
        return replace(
            self,
            modules=modules,
            tops=frozenset(tops | {"sitecustomize", "usercustomize"}),
            natives=_natives(),
            blas=tuple(threads.libraries()),
        )

    def shadowed(self, directories: list[str]) -> str:
        """A module in one of these directories that a fresh interpreter would have preferred."""
        for directory in directories:
            with contextlib.suppress(OSError):
                for entry in os.listdir(directory or "."):
                    if entry.partition(".")[0] in self.tops and _importable(directory, entry):
                        return os.path.join(directory, entry)
        return ""


def become(spec: dict[str, Any], base: Interpreter) -> NoReturn:
    """Be the program until it ends; never returns."""
    environ = spec["environ"]
    search = _search_path(spec, environ)
    site = environ.get("PYTHONPATH", "").split(os.pathsep)[:1]
    if base.shadowed([entry for entry in search if [entry] != site]):
        argv = spec["argv"]
        os.execve(argv[0], argv, environ)
    os.environ.clear()
    os.environ.update(environ)
    sys.path[:] = [*search, *base.path]
    sys.argv[:] = [spec["target"], *spec["args"]]
    if spec["kind"] == "code":
        sys.argv[0] = "-c"
    sys.orig_argv[:] = spec["argv"]
    sys.dont_write_bytecode = bool(environ.get("PYTHONDONTWRITEBYTECODE")) or "-B" in spec["flags"]
    sys.pycache_prefix = environ.get("PYTHONPYCACHEPREFIX") or None
    if environ.get("PYTHONFAULTHANDLER"):
        import faulthandler

        faulthandler.enable()
    _open_streams(environ, unbuffered="-u" in spec["flags"])
    _own_signals(spec["ignored"])
    threads.restore(base.blas, environ)
    if "multiprocessing.process" in sys.modules:
        # Where its children look for a script that was named by a relative path.
        sys.modules["multiprocessing.process"].__dict__["ORIGINAL_DIR"] = os.getcwd()
    title.show(spec["argv"])
    gc.enable()
    _finish(_execute(spec), base)


def _search_path(spec: dict[str, Any], environ: dict[str, str]) -> list[str]:
    """The head of sys.path: the program's own place, then PYTHONPATH."""
    if spec["kind"] == "script":
        first = os.path.dirname(os.path.realpath(spec["target"]))
        if _holds_main(spec["target"]):
            first = _absolute(spec["target"])
    else:
        first = os.getcwd() if spec["kind"] == "module" else ""
    extra = [os.path.abspath(e) for e in environ.get("PYTHONPATH", "").split(os.pathsep) if e]
    return [first, *extra]


def _holds_main(target: str) -> bool:
    """Whether it is a directory or an archive, whose `__main__` is the program."""
    return os.path.isdir(target) or target.endswith((".zip", ".pyz"))


def _absolute(path: str) -> str:
    """As CPython does it with the script's name: dots and links stay as they were typed."""
    return os.path.join(os.getcwd(), path)


def _importable(directory: str, entry: str) -> bool:
    path = os.path.join(directory, entry)
    if entry.endswith((".py", ".pyc", *importlib.machinery.EXTENSION_SUFFIXES)):
        return True
    return "." not in entry and os.path.isfile(os.path.join(path, "__init__.py"))


def _open_streams(environ: dict[str, str], unbuffered: bool) -> None:
    """Open the three streams as a fresh interpreter would."""
    unbuffered = unbuffered or bool(environ.get("PYTHONUNBUFFERED"))
    name, _, errors = environ.get("PYTHONIOENCODING", "").partition(":")
    encoding = name or sys.stdout.encoding or "utf-8"
    errors = errors or ("strict" if name else _errors_of_locale())
    for number, stream, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        raw = io.FileIO(number, mode, closefd=False)
        raw.name = f"<{stream}>"
        buffer: Any = raw
        if mode == "r":
            buffer = io.BufferedReader(raw)
        elif not unbuffered:
            buffer = io.BufferedWriter(raw)
        text = io.TextIOWrapper(
            buffer,
            encoding=encoding,
            errors="backslashreplace" if number == 2 else errors,
            newline=None if mode == "r" else "\n",
            line_buffering=number == 2 or raw.isatty(),
            write_through=unbuffered and mode == "w",
        )
        setattr(text, "mode", mode)  # noqa: B010 - read-only to a type checker, not to CPython
        setattr(sys, stream, text)
        setattr(sys, f"__{stream}__", text)


def _errors_of_locale() -> str:
    """What becomes of bytes that are no text: in the plain locales, they are passed through."""
    name = "C"
    with contextlib.suppress(locale.Error):
        name = locale.setlocale(locale.LC_CTYPE, "")
    if name in ("C", "POSIX"):
        # As CPython does it, so that files are UTF-8 and not ASCII.
        with contextlib.suppress(locale.Error):
            locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    return "surrogateescape" if name in _PLAIN_LOCALES else "strict"


def _own_signals(ignored: list[int]) -> None:
    """What CPython sets at its start."""
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)


def _execute(spec: dict[str, Any]) -> int | None:
    """Run the program's code as `__main__`; its exit code, None for an uncaught Ctrl-C."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
    sys.modules["__main__"] = main
    measure.mark_main_started()
    try:
        _run(spec, main.__dict__)  # The point of the whole thing.
    except SystemExit as stop:
        return _exit_code(stop.code)
    except BaseException as error:
        trace = _without_us(error.__traceback__)
        error.__traceback__ = trace
        sys.excepthook(type(error), error, trace)
        return None if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _run(spec: dict[str, Any], main: dict[str, Any]) -> None:
    """Run the program's code with the names that CPython gives to `__main__`."""
    module = spec["kind"] == "module"
    if module or (spec["kind"] == "script" and _holds_main(spec["target"])):
        import runpy

        # What `python` itself calls here; private, so it has no types.
        helpers: Any = runpy
        helpers._run_module_as_main(spec["target"] if module else "__main__", module)
    elif spec["kind"] == "code":
        main["__loader__"] = importlib.machinery.BuiltinImporter
        exec(compile(spec["target"], "<string>", "exec", dont_inherit=True), main)
    else:
        exec(_load(spec, main), main)


def _load(spec: dict[str, Any], main: dict[str, Any]) -> types.CodeType:
    """The script's code, with `__main__` set up for it."""
    target = _absolute(spec["target"])
    loader = importlib.machinery.SourceFileLoader("__main__", target)
    main.update(
        __file__=target,
        __cached__=None,
        __doc__=None,
        __loader__=loader,
        __package__=None,
        __spec__=None,
    )
    try:
        with io.open_code(target) as file:
            source = file.read()
    except OSError as error:
        print(
            f"{spec['argv'][0]}: can't open file {target!r}: "
            f"[Errno {error.errno}] {error.strerror}",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    linecache.checkcache(target)
    return compile(source, target, "exec", dont_inherit=True)


def _without_us(trace: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback from the program's own first frame on."""
    own = os.path.dirname(__file__)
    while trace is not None and os.path.dirname(trace.tb_frame.f_code.co_filename) == own:
        trace = trace.tb_next
    return trace


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _natives() -> frozenset[str]:
    """The native libraries behind the imported modules."""
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return frozenset(file for file in files if isinstance(file, str) and file.endswith(suffixes))


def _finish(code: int | None, base: Interpreter) -> NoReturn:
    """End as an interpreter does, without taking TensorFlow itself apart.

    Threads are joined, exit handlers run, the program's modules are cleared (which closes its
    files and runs its finalisers), streams are flushed. Only the libraries that the nursery had
    imported are left as they are: the kernel frees them faster. A program that has loaded native
    libraries of its own gets the interpreter's full finalisation, as those may rely on it.
    """
    measure.mark_exit(130 if code is None else code)
    if not _natives() <= base.natives and code is not None:
        sys.exit(code)
    # What the interpreter calls itself at its end; private, so it has no types.
    for step in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):
            step()
    own = [name for name in sys.modules if name not in base.modules]
    for name in ["__main__", *own]:
        module = sys.modules.get(name)
        if module is not None and isinstance(module, types.ModuleType):
            with contextlib.suppress(Exception):
                _clear(module)
    with contextlib.suppress(Exception):
        gc.collect()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
    if code is None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(130 if code is None else code)


def _clear(module: types.ModuleType) -> None:
    """Drop what a module holds in the order the interpreter does: names with one `_` first."""
    names = list(module.__dict__)
    for name in names:
        if name.startswith("_") and not name.startswith("__"):
            module.__dict__[name] = None
    for name in names:
        if name != "__builtins__":
            module.__dict__[name] = None
