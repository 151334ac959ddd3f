"""The command line that `ps`, `top` and `pkill -f` show for a forked worker.

The nursery is started with a long last argument; its forks write their own words over that
memory, which is where the kernel reads a process's command line from.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

ROOM = "-" * 1500
"""The argument that makes the room."""


def show(argv: list[str]) -> None:
    """Put these words in place of this process's command line, cut to the room there is."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        begin, end = int(fields[45]), int(fields[46])
        if end - begin < len(ROOM):
            return
        words = b"\0".join(os.fsencode(word) for word in argv) + b"\0"
        room = end - begin - 1
        ctypes.memmove(begin, words[:room].ljust(room, b"\0"), room)
        name = os.path.basename(argv[0]).encode()[:15]
        ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
