"""Unmaps the pages of libraries that a nursery has mapped while it loaded them.

Loading TensorFlow maps some 300 MiB of file pages, most of which are not used again. Forked
children do not inherit such mappings but map what they use from the page cache, so this makes no
worker slower.
"""

from __future__ import annotations

import ctypes
import re

_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ [1-9]\d*\s+/")
_DONTNEED = 4
_WORTH_IT = 1 << 20


def release() -> int:
    """Unmap clean pages of files, which come back when they are used; how many bytes."""
    library = ctypes.CDLL(None, use_errno=True)
    madvise = library.madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.malloc_trim(0)
    released = 0
    for start, length, resident in _clean():
        if resident >= _WORTH_IT and madvise(start, length, _DONTNEED) == 0:
            released += resident
    return released


def _clean() -> list[tuple[int, int, int]]:
    """Start, length and resident bytes of each mapping that is equal to its file.

    A mapping with private pages (relocated or written) is left out, because these would be lost.
    """
    found = []
    start = length = resident = 0
    clean = False
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as file:
        for line in file:
            if match := _MAPPING.match(line):
                start = int(match[1], 16)
                length = int(match[2], 16) - start
                clean = "w" not in match[3] and match[3].endswith("p")
            elif line.startswith("Rss:"):
                resident = int(line.split()[1]) * 1024
            elif line.startswith("Anonymous:"):
                if clean and line.split()[1] == "0":
                    found.append((start, length, resident))
                clean = False
    return found
