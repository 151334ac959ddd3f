"""Starts a broker outside of a program's process tree.

A program under a lease may be the first to need a broker. Whatever it starts itself stays below its
keeper and ends with it; a broker must not, nor the workers that it starts for others. So the
program asks its keeper, and the keeper makes a process that is its parent's child and not its own.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

_CLONE_PARENT = 0x00008000
_CLONE3 = 435
_CLONE = {"x86_64": 56, "aarch64": 220}
_ARGUMENTS = struct.Struct("<11Q")
"""The kernel's `struct clone_args`: flags first; all else is 0."""
_SIGCHLD = 17


def start(words: list[str], environ: dict[str, str], log: str, report: int) -> None:
    """Start a program as our sibling, with `report` as its one descriptor beside the standard ones.

    The number of that descriptor is its last argument. Raises OSError if the kernel has no way.
    """
    if _fork_sibling() == 0:
        try:
            _become(words, environ, log, report)
        finally:
            os._exit(127)


def _fork_sibling() -> int:
    """As `os.fork`, but the child is our sibling, and Python's fork handlers do not run."""
    libc = ctypes.CDLL(None, use_errno=True)
    given = ctypes.create_string_buffer(_ARGUMENTS.pack(_CLONE_PARENT, *(0,) * 10))
    pid = int(libc.syscall(_CLONE3, given, ctypes.c_size_t(_ARGUMENTS.size)))
    if pid < 0 and ctypes.get_errno() in (errno.ENOSYS, errno.EPERM):
        # Containers refuse clone3, whose arguments they cannot inspect.
        number = _CLONE.get(platform.machine(), -1)
        zero = ctypes.c_void_p(0)
        flags = ctypes.c_ulong(_CLONE_PARENT | _SIGCHLD)
        pid = int(libc.syscall(number, flags, zero, zero, zero, zero))
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return pid


def _become(words: list[str], environ: dict[str, str], log: str, report: int) -> None:
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for number, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(number, target)
    os.set_inheritable(report, True)
    os.execve(words[0], [*words, str(report)], environ)
