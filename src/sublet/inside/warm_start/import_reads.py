"""What an import reads besides code: variables of the environment, and files outside of packages.

The nursery imports for later programs. What its imports have read must be the same for a program,
or is read again for it (`settings`); otherwise the program needs another nursery.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import functools
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_NOT_FILES = ("/dev/", "/proc/", "/sys/")


@dataclasses.dataclass
class Reads:
    """What imports have read, and which variables and warning filters they have set."""

    variables: dict[str, str | None] = dataclasses.field(default_factory=dict)
    """Each with its value; None if it was not set."""
    files: set[str] = dataclasses.field(default_factory=set)
    """Absolute paths that were opened or looked for."""
    local: set[str] = dataclasses.field(default_factory=set)
    """Relative paths that were opened or looked for."""
    written: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    """The variables that each package has set."""
    filters: dict[str, list[tuple[Any, Callable[[], None]]]] = dataclasses.field(
        default_factory=dict
    )
    """The warning filters that each package has set, each with a function that sets it again."""

    def set_by_imports(self) -> dict[str, str]:
        """All variables that imports have set, with their values."""
        return {name: value for package in self.written.values() for name, value in package.items()}

    def note_file(self, path: Any) -> None:
        if isinstance(path, (str, os.PathLike)):
            name = os.fspath(path)
            if isinstance(name, str) and os.path.isabs(name):
                self.files.add(name)
            elif isinstance(name, str):
                self.local.add(name)


@contextlib.contextmanager
def traced() -> Iterator[Reads]:
    """Note what imports in the body read and set. Warning filters are removed again afterwards.
    What C code reads is not seen."""
    reads = Reads()
    environ: Any = type(os.environ)
    get = environ.__getitem__

    def getitem(self: Any, name: Any) -> Any:
        try:
            value = get(self, name)
        except KeyError:
            value = None
        if isinstance(name, str):
            reads.variables.setdefault(name, value)
        return get(self, name)

    put = environ.__setitem__

    def setitem(self: Any, name: Any, value: Any) -> None:
        put(self, name, value)
        reads.written.setdefault(_package(), {})[name] = value

    filters = list(warnings.filters)
    with contextlib.ExitStack() as undo:
        for name in ("filterwarnings", "simplefilter"):
            noting = _noting_filters(getattr(warnings, name), reads)
            undo.enter_context(_replaced(warnings, name, noting))
        undo.enter_context(_replaced(environ, "__getitem__", getitem))
        undo.enter_context(_replaced(environ, "__setitem__", setitem))
        for module, name in ((builtins, "open"), (io, "open"), (os, "stat"), (os, "open")):
            undo.enter_context(_replaced(module, name, _noting(getattr(module, name), reads)))
        yield reads
    for written in reads.written.values():
        for name in [name for name in written if name not in os.environ]:
            del written[name]  # It was set during the import only.
    for package, added in reads.filters.items():
        reads.filters[package] = [one for one in added if one[0] in warnings.filters]
    warnings.resetwarnings()
    warnings.filters[:] = filters  # type: ignore[index]
    reads.files = {path for path in reads.files if not _is_of_interpreter(path)}
    reads.local -= {"", "."}


def _noting(original: Callable[..., Any], reads: Reads) -> Callable[..., Any]:
    @functools.wraps(original)
    def opened(path: Any, *args: Any, **kwargs: Any) -> Any:
        reads.note_file(path)
        return original(path, *args, **kwargs)

    return opened


def _noting_filters(original: Callable[..., None], reads: Reads) -> Callable[..., None]:
    @functools.wraps(original)
    def set_filter(*args: Any, **kwargs: Any) -> None:
        before = list(warnings.filters)
        original(*args, **kwargs)
        again = functools.partial(original, *args, **kwargs)
        for item in warnings.filters:
            if item not in before:
                reads.filters.setdefault(_package(), []).append((item, again))

    return set_filter


def _package() -> str:
    """The package whose code runs: the nearest caller outside of the standard library."""
    frame = sys._getframe(2)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if name not in sys.stdlib_module_names:
            return name
        frame = frame.f_back  # type: ignore[assignment]
    return ""


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _is_of_interpreter(path: str) -> bool:
    """Whether a path belongs to the interpreter or a package; `ages` notices changes of these."""
    homes = (sys.prefix, sys.base_prefix, *(entry for entry in sys.path if entry))
    return path.startswith(_NOT_FILES) or any(path.startswith(home) for home in homes)


def ages(paths: Iterable[str]) -> dict[str, int]:
    """When each path was last changed, in ns; 0 where there is nothing.

    Installing, upgrading or removing a package changes the directory that it is in. Changes inside
    of a package, such as new bytecode, do not.
    """
    return {path: _changed(path) for path in paths}


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
