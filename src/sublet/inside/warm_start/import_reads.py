"""What an import reads besides code: variables of the environment, and files outside of packages.

The nursery imports for programs that come later. What its imports have read must be the same for
such a program, or be read again for it (`settings`), or the program is no child of this nursery.
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
from collections.abc import Callable, Iterator
from typing import Any

_NOT_FILES = ("/dev/", "/proc/", "/sys/")


@dataclasses.dataclass
class Reads:
    """What was read while it was traced."""

    variables: dict[str, str | None] = dataclasses.field(default_factory=dict)
    """Each with the value it had; None if it was not set."""
    files: set[str] = dataclasses.field(default_factory=set)
    """Absolute paths that were opened or looked for."""
    local: set[str] = dataclasses.field(default_factory=set)
    """Paths that were looked for in the current directory."""
    written: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    """Variables that were set, by the package that has set them."""
    filters: dict[str, list[tuple[Any, Callable[[], None]]]] = dataclasses.field(
        default_factory=dict
    )
    """Filters of warnings by the package that has set them, each with a call that does so."""

    def set_by_imports(self) -> dict[str, str]:
        """Variables that imports have set, and to what: who has one has it from such an import."""
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
    """Note what is read in the body, and which filters of warnings are set, which are taken back.
    Does not see what C code reads."""
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
            del written[name]  # It was there for the import only.
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
    """The package whose code is at work: the caller's caller, or whoever called that."""
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
    """Whether it belongs to the interpreter or a package, whose changes are noticed otherwise."""
    homes = (sys.prefix, sys.base_prefix, *(entry for entry in sys.path if entry))
    return path.startswith(_NOT_FILES) or any(path.startswith(home) for home in homes)
