"""Turns a process that was forked warm into the user's program.

The program must not notice: argv, environment, streams, path, `__main__`, modules, random numbers,
tracebacks, signals, exit code and what is flushed at the end are as in a fresh `python train.py`.
Where that is impossible, the process becomes a fresh interpreter by exec, with the same number and
streams.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.machinery
import io
import locale
import logging
import os
import signal
import sys
import time
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ...formats import attempt_files
from ...formats.lease import VARIABLE, LeaseTerms
from ...formats.lease_environment import SITE
from .. import measure, stack_dump
from . import native_libraries, proctitle, trampoline
from .ending import Ending
from .import_reads import Reads
from .preloaded import Needs, Preloaded
from .settings import Settings

if TYPE_CHECKING:
    from ...formats.worker_spec import ProgramSpec, WorkerSpec

_PLAIN_LOCALES = ("C", "POSIX", "C.UTF-8", "C.utf8", "UTF-8")
"""Locales in which CPython's streams use `surrogateescape`."""
BLANK = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "blank")
"""On a nursery's PYTHONPATH: empty customisations, in place of the user's."""


class Before(NamedTuple):
    """The nursery's interpreter before it imports anything for programs."""

    path: tuple[str, ...]
    modules: frozenset[str]

    @classmethod
    def now(cls) -> Before:
        for name in ("sitecustomize", "usercustomize"):
            sys.modules.pop(name, None)
        sys.path[:] = [entry for entry in sys.path if entry != BLANK]
        return cls(tuple(entry for entry in sys.path if entry), frozenset(sys.modules))


@dataclass(frozen=True)
class Interpreter:
    """The nursery's interpreter, and what it has imported for programs."""

    path: tuple[str, ...]
    tops: frozenset[str]
    """Top-level modules that imports have loaded or looked for."""
    local: frozenset[str]
    """Files that imports have looked for in the current directory."""
    backend: str
    """Keras' backend, as it was loaded."""
    ending: Ending
    preloaded: Preloaded

    @classmethod
    def after_preload(cls, before: Before, needs: Needs, reads: Reads) -> Interpreter:
        """Hide the preloaded packages, and return what the programs need to know."""
        tops = {name for name in sys.modules if "." not in name} - set(sys.builtin_module_names)
        tops.remove("__main__")  # Each program brings its own.
        tops |= needs.missing
        ending = Ending.now()
        config = sys.modules.get("keras.src.backend.config")
        settings = Settings(reads, native_libraries.openblas_libraries())
        preloaded = Preloaded(needs, settings.imported)
        preloaded.hide(before.modules)
        return cls(
            before.path,
            frozenset(tops),
            frozenset(reads.local - {"matplotlibrc"}),
            str(getattr(config, "_BACKEND", "")),
            ending,
            preloaded,
        )

    def why_fresh(self, search: list[str], environ: dict[str, str]) -> str:
        """Why the program needs a fresh interpreter; empty if it needs none."""
        if self.backend not in ("", environ.get("KERAS_BACKEND") or self.backend):
            return f"KERAS_BACKEND is {environ['KERAS_BACKEND']}"
        if (encoding := locale.nl_langinfo(locale.CODESET)) != "UTF-8":
            return f"text is {encoding} in this locale"
        for directory in search:
            with contextlib.suppress(OSError):
                for entry in os.listdir(directory or "."):
                    if entry.partition(".")[0] in self.tops and _importable(directory, entry):
                        return f"{os.path.join(directory, entry)} hides a module that is preloaded"
        for name in sorted(self.local):
            if os.path.exists(name):
                return f"{name} is read when a package is imported"
        return ""


def become(spec: WorkerSpec, base: Interpreter) -> NoReturn:
    """Become the program. Leaves by an exception that nobody may catch."""
    environ = spec["environ"]
    os.environ.clear()
    os.environ.update(environ)
    errors = _set_locale()
    own, extra = own_place(spec), _python_path(environ)
    if why := base.why_fresh([own, *extra], environ):
        _become_fresh(spec, why)
    sys.path[:] = [*extra, *base.path]
    sys.argv[:] = ["-c" if spec["kind"] == "code" else spec["target"], *spec["args"]]
    sys.orig_argv[:] = spec["argv"]
    sys.executable = spec["argv"][0]
    sys.dont_write_bytecode = bool(environ.get("PYTHONDONTWRITEBYTECODE")) or "-B" in spec["flags"]
    sys.pycache_prefix = environ.get("PYTHONPYCACHEPREFIX") or None
    if environ.get("PYTHONFAULTHANDLER"):
        import faulthandler

        faulthandler.enable()
    _open_streams(environ, errors, unbuffered="-u" in spec["flags"])
    _set_signals(spec["ignored"])
    stack_dump.listen()
    _reset_standard_library()
    proctitle.show(spec["argv"])
    gc.enable()
    if VARIABLE in environ:  # A rehearsal has no lease.
        native_libraries.load_fence(LeaseTerms.from_json(environ[VARIABLE]))
    _customise()
    sys.path.insert(0, own)
    program = prepare(spec)
    measure.mark_main_started()
    base.ending.watch()
    trampoline.leave_to(program, base.ending.end)


def _become_fresh(spec: WorkerSpec, why: str) -> NoReturn:
    """Replace this process by a fresh interpreter."""
    lease = LeaseTerms.from_json(spec["environ"][VARIABLE])
    with contextlib.suppress(OSError):
        attempt_files.write(lease.dir, attempt_files.FRESH, {"why": why})
    argv = spec["argv"]
    os.execve(argv[0], argv, spec["environ"])


def _reset_standard_library() -> None:
    """Drop what the standard library has cached in the nursery."""
    time.tzset()
    modules: dict[str, Any] = sys.modules
    if tempfile := modules.get("tempfile"):
        tempfile.tempdir = tempfile._name_sequence = None
    if uuid := modules.get("uuid"):
        uuid._node = uuid._last_timestamp = None
    if process := modules.get("multiprocessing.process"):
        process.current_process().authkey = os.urandom(32)
        # Its children look there for a script with a relative path.
        process.ORIGINAL_DIR = os.getcwd()


def _customise() -> None:
    """Run the user's `sitecustomize` and `usercustomize`, as `site` does it."""
    import site

    site.execsitecustomize()
    if site.ENABLE_USER_SITE:
        site.execusercustomize()


def own_place(spec: ProgramSpec) -> str:
    """The first entry of sys.path, which depends on how the program was named."""
    if spec["kind"] == "script" and _holds_main(spec["target"]):
        return _absolute(spec["target"])
    if spec["kind"] == "script":
        return os.path.dirname(os.path.realpath(str(spec["target"])))
    return os.getcwd() if spec["kind"] == "module" else ""


def _python_path(environ: dict[str, str]) -> list[str]:
    """What PYTHONPATH adds to sys.path, without our own entry, which is for children."""
    entries = environ.get("PYTHONPATH", "").split(os.pathsep)
    return [os.path.abspath(entry) for entry in entries if entry and entry != SITE]


def _holds_main(target: str) -> bool:
    """Whether the target is a directory or an archive with a `__main__`."""
    return os.path.isdir(target) or target.endswith((".zip", ".pyz"))


def _absolute(path: str) -> str:
    """An absolute path as CPython makes it: dots and links stay as they were typed."""
    return os.path.join(os.getcwd(), path)


def _importable(directory: str, entry: str) -> bool:
    path = os.path.join(directory, entry)
    if entry.endswith((".py", ".pyc", *importlib.machinery.EXTENSION_SUFFIXES)):
        return True
    return "." not in entry and os.path.isfile(os.path.join(path, "__init__.py"))


def _open_streams(environ: dict[str, str], errors: str, unbuffered: bool) -> None:
    """Open the three streams as a fresh interpreter would."""
    unbuffered = unbuffered or bool(environ.get("PYTHONUNBUFFERED"))
    name, _, own_errors = environ.get("PYTHONIOENCODING", "").partition(":")
    encoding = name or "utf-8"
    errors = own_errors or ("strict" if name else errors)
    for number, stream, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        before = getattr(sys, stream)
        try:
            raw = io.FileIO(number, mode, closefd=False)
        except OSError:
            setattr(sys, stream, None)
            setattr(sys, f"__{stream}__", None)
            continue
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
        # Handlers made during the preload have to write to the program's stream.
        for reference in logging._handlerList:  # type: ignore[attr-defined]
            if getattr(handler := reference(), "stream", None) is before:
                handler.stream = text


def _set_locale() -> str:
    """Set the locale as CPython does at its start; the error handler of its streams."""
    name = "C"
    with contextlib.suppress(locale.Error):
        name = locale.setlocale(locale.LC_CTYPE, "")
    if name in ("C", "POSIX"):
        # As CPython does it, so that files are UTF-8 and not ASCII.
        with contextlib.suppress(locale.Error):
            locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    return "surrogateescape" if name in _PLAIN_LOCALES else "strict"


def _set_signals(ignored: list[int]) -> None:
    """Set the signal handlers that CPython sets at its start."""
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)


def prepare(spec: ProgramSpec) -> Any:
    """The program, as a function that runs it in `__main__`; see `trampoline`."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
    sys.modules["__main__"] = main
    if spec["kind"] == "module":
        return functools.partial(_run_module, spec["target"], True)
    if spec["kind"] == "code":
        main.__dict__["__loader__"] = importlib.machinery.BuiltinImporter
        return trampoline.code(spec["target"])
    if _holds_main(spec["target"]):
        return functools.partial(_run_module, "__main__", False)
    path = _absolute(spec["target"])
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__.update(__cached__=None, __doc__=None, __loader__=loader)
    main.__dict__.update(__package__=None, __spec__=None)
    try:
        return trampoline.script(path)
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        print(f"{spec['argv'][0]}: can't open file {path!r}: {reason}", file=sys.stderr)
        raise SystemExit(2) from None


def _run_module(name: str, is_module: bool) -> int:
    """Run a module as `python -m` does, or a directory or an archive with a `__main__`."""
    import runpy

    helpers: Any = runpy  # `python` itself calls this private function.
    try:
        helpers._run_module_as_main(name, is_module)
    except SystemExit as stop:
        return _exit_code(stop.code)
    except BaseException as error:
        trace = error.__traceback__
        sys.last_type, sys.last_value = type(error), error
        sys.last_traceback = error.__traceback__ = trace.tb_next if trace is not None else None
        sys.excepthook(type(error), error, error.__traceback__)
        return trampoline.FAILED
    return 0


# Shown in tracebacks, whose first frames are those of `runpy` anyway.
_run_module.__code__ = _run_module.__code__.replace(co_filename="<frozen runpy>")


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1
