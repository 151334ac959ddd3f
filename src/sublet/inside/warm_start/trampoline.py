"""Running a program with none of our frames on its stack.

A program that looks at its stack (a debugger, `inspect.stack()`, `faulthandler`, TensorFlow's graph
errors) must find itself at the bottom. Any Python function that called it would be below it, so
none does: we leave by a SystemExit, up to the C code that ends an interpreter. That code asks the
exception for its `code`. Ours is a property that answers by running the program, and is made of C
functions alone.
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
"""What CPython's functions return when the program has ended by an exception, which they have
printed. They do not return at all from a SystemExit: they end the interpreter."""


_COUNTED = 5
"""So many of our calls are on the stack, by the count of Python 3.11, which counts C functions."""


class _Departure(SystemExit):
    """`run` is called when all Python frames are gone; what it returns is the exit code."""

    run: Callable[[], int]
    code = property(operator.methodcaller("run"))


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
    """How CPython 3.11's begins."""

    _fields_ = (
        ("pointers", ctypes.c_void_p * 3),
        ("flags", ctypes.c_int * 2),
        ("remaining", ctypes.c_int),
        ("limit", ctypes.c_int),
    )


def _lift_recursion(calls: int) -> None:
    """Let the program recurse as deep as without us, if the count is where it is known to be."""
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", ctypes.pythonapi))
    state = _ThreadState.from_address(get())
    if state.limit == sys.getrecursionlimit() and state.limit - 100 < state.remaining < state.limit:
        state.remaining += calls


def script(path: str) -> Callable[[], int]:
    """The script of this absolute path, as `python` runs it in `__main__`. OSError if there is
    none that can be read."""
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
    """What follows `python -c`."""
    if sys.version_info >= (3, 13):
        # Its tracebacks show the lines of the code, too.
        lines = [line + "\n" for line in text.splitlines()]
        linecache.cache["<string>"] = (len(text), None, lines, "<string>")
    run = ctypes.pythonapi.PyRun_SimpleStringFlags
    run.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    return functools.partial(run, text.encode("utf-8", "surrogateescape"), None)
