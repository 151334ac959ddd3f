"""`error-<pid>.json` in an attempt's directory: the exception that has ended the program."""

from __future__ import annotations

import contextlib
import dataclasses
import os

from . import attempt_files

PREFIX = "error-"
_KEPT = 2000
"""So many characters of a message are kept."""
_LONGEST_PATH = 4096


@dataclasses.dataclass(frozen=True)
class LastError:
    """The exception: class and message, and where in the program's script it came through."""

    text: str
    file: str
    line: int | None


def write(directory: str, error: BaseException) -> None:
    """Note the exception that ends this process. Never raises."""
    if isinstance(error, (KeyboardInterrupt, BrokenPipeError)):
        return
    with contextlib.suppress(Exception):
        file, line = _place(error)
        record = {"text": f"{type(error).__name__}: {error}"[:_KEPT], "file": file, "line": line}
        attempt_files.write(directory, f"{PREFIX}{os.getpid()}.json", record)


def _place(error: BaseException) -> tuple[str, int | None]:
    """The last line of the script that the exception came through: its first frame is there."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno
    trace = error.__traceback__
    main = "" if trace is None else trace.tb_frame.f_code.co_filename
    line: int | None = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == main:
            line = trace.tb_lineno
        trace = trace.tb_next
    return main, line


def read(directory: str) -> LastError | None:
    """The error that the program has left last; None if it has left none that makes sense."""
    found: list[tuple[float, LastError]] = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(directory):
            if entry.name.startswith(PREFIX) and (error := _read(directory, entry.name)):
                found.append((entry.stat().st_mtime, error))
    return max(found, key=lambda one: one[0], default=(0.0, None))[1]


def _read(directory: str, name: str) -> LastError | None:
    record = attempt_files.read(directory, name) or {}
    text, file, line = record.get("text"), record.get("file"), record.get("line")
    if not isinstance(text, str) or not isinstance(file, str):
        return None
    if not isinstance(line, int) or isinstance(line, bool) or not 0 < line < 1 << 31:
        line = None
    return LastError(text[:_KEPT], file[:_LONGEST_PATH], line)
