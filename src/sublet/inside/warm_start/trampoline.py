"""Runs a program with none of our frames on its stack.

A program that looks at its stack (a debugger, `inspect.stack()`, `faulthandler`, TensorFlow's graph
errors) must find itself at the bottom, so no Python function may call it. Instead we raise a
SystemExit up to the C code that ends an interpreter. That code asks the exception for its `code`,
which is a property that runs the program, made of C functions alone.
"""

from __future__ import annotations

import ctypes
import functools
import linecache
import operator
import os
import sys
from collections.abc import Callable
from typing import NoReturn

_call = operator.methodcaller("__call__")
FAILED = -1
"""The result of CPython's functions for a program that ended by an exception, which they have
printed. They do not return from a SystemExit, but end the interpreter."""


_COUNTED = 5
"""Our calls on the stack as Python 3.11 counts them, which includes C functions."""


class _Departure(SystemExit):
    """Calls `run` when all Python frames are gone; its result is the exit code."""

    run: Callable[[], int]
    code = property(operator.methodcaller("run"))

    def __str__(self) -> str:
        """What CPython prints, before it exits with 1, if `run` has failed."""
        return "sublet: a fault of ours has ended the program; please report it"


def leave_to(program: Callable[[], int], ended: Callable[[int], int]) -> NoReturn:
    """Leave all frames, call `program`, then `ended` with what it has returned.

    `program` should be one of those below. `ended` returns the exit code of the process.
    """
    if sys.version_info < (3, 12):
        _lift_recursion(_COUNTED)
    departure = _Departure()
    departure.run = functools.partial(next, map(ended, map(_call, [program])))
    raise departure


class _ThreadState(ctypes.Structure):
    """The beginning of CPython 3.11's thread state."""

    _fields_ = (
        ("pointers", ctypes.c_void_p * 3),
        ("flags", ctypes.c_int * 2),
        ("remaining", ctypes.c_int),
        ("limit", ctypes.c_int),
    )


def _lift_recursion(calls: int) -> None:
    """Let the program recurse as deep as without us, if the counter is where we expect it."""
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", ctypes.pythonapi))
    state = _ThreadState.from_address(get())
    if state.limit == sys.getrecursionlimit() and state.limit - 100 < state.remaining < state.limit:
        state.remaining += calls


def script(path: str) -> Callable[[], int]:
    """Runs the script of this absolute path as `python` does. OSError if it cannot be read."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fopen.restype = ctypes.c_void_p
    name = os.fsencode(path)
    file = libc.fopen(name, b"rbe")
    if not file:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    run = ctypes.pythonapi.PyRun_SimpleFileExFlags
    run.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
    close = 1
    return functools.partial(run, file, name, close, None)


def code(text: str) -> Callable[[], int]:
    """Runs this text as `python -c` does."""
    if sys.version_info >= (3, 13):
        # Tracebacks of 3.13 show the lines of the code, too.
        lines = [line + "\n" for line in text.splitlines()]
        linecache.cache["<string>"] = (len(text), None, lines, "<string>")
    run = ctypes.pythonapi.PyRun_SimpleStringFlags
    run.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    return functools.partial(run, text.encode("utf-8", "surrogateescape"), None)
