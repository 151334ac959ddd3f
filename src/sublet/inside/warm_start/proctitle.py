"""Sets the command line that `ps`, `top` and `pkill -f` show for this process.

The kernel reads it from the process's own memory. Where the kernel allows it, we point it to our
own words; without CONFIG_CHECKPOINT_RESTORE we overwrite the old ones, for which the nursery is
started with a long last argument.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct

ROOM = "-" * 1500
"""That long argument."""

_PR_SET_NAME = 15
_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_MAP = struct.Struct("<12QIi")
"""The kernel's `struct prctl_mm_map`: eleven addresses, `auxv`, its size, and a descriptor."""
_FIRST_OF_CODE, _FIRST_OF_DATA = 22, 41
"""Indices of addresses in /proc/self/stat, counted after the name."""

_words: ctypes.Array[ctypes.c_char] | None = None
"""The kernel reads this memory, so it must stay where it is."""


def show(argv: list[str]) -> None:
    """Put these words in place of this process's command line."""
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            fields = [int(field) for field in file.read().rpartition(")")[2].split()[1:]]
        words = b"\0".join(os.fsencode(word) for word in argv) + b"\0"
        if not _point_to(words, fields):
            _write_over(words, fields)
        name = os.fsencode(os.path.basename(argv[0]))[:15]
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name, 0, 0, 0)


def _point_to(words: bytes, fields: list[int]) -> bool:
    global _words
    start_code, end_code, stack = fields[_FIRST_OF_CODE : _FIRST_OF_CODE + 3]
    start_data, end_data, start_brk, _, _, *environ = fields[_FIRST_OF_DATA : _FIRST_OF_DATA + 7]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    mine = ctypes.create_string_buffer(words, len(words))
    begin = ctypes.addressof(mine)
    segments = (start_code, end_code, start_data, end_data, start_brk, libc.sbrk(0), stack)
    packed = _MAP.pack(*segments, begin, begin + len(words), *environ, 0, 0, -1)
    size = ctypes.c_ulong(len(packed))
    if libc.prctl(_PR_SET_MM, ctypes.c_ulong(_PR_SET_MM_MAP), packed, size, ctypes.c_ulong(0)) != 0:
        return False
    _words = mine
    return True


def _write_over(words: bytes, fields: list[int]) -> None:
    """Overwrite the old words, cut to fit, as one string: its last byte is not zero."""
    begin, end = fields[_FIRST_OF_DATA + 3 : _FIRST_OF_DATA + 5]
    if end - begin < len(ROOM):
        return
    room = end - begin - 1
    line = words.rstrip(b"\0").replace(b"\0", b" ")[: room - 1]
    ctypes.memmove(begin, line.ljust(room, b"\0") + b"-", room + 1)
