"""Finds the memory that a program uses up to its first operation, so that waiting workers can have
it ready.

After a fork a process shares all memory with its parent. It copies each page when it first writes
to it, and maps each page of a library when it first uses it: some 2,500 page faults until the first
operation, a third of that time. So one child of the nursery, the rehearsal, becomes a program that
does one operation, and lists the pages that it has copied or mapped. Every later worker has the
kernel do the same while it waits for its order.
"""

from __future__ import annotations

import array
import ctypes
import mmap
import os
import re
import signal
import sys
from typing import NamedTuple, cast

from sublet.formats.lease_environment import BFC_LIMIT, USE_BFC, VISIBLE
from sublet.formats.worker_spec import WorkerSpec

_PROGRAM = """
import tensorflow as tf
(tf.constant(1.0) + 1.0).numpy()
from sublet.nursery import rehearsal
rehearsal.report()
"""
_LONGEST = 20
"""Seconds after which a rehearsal is killed; on a busy machine the next may do better."""
_MOST_TRIES = 3
_PR_SET_PDEATHSIG = 1
_POPULATE_READ, _POPULATE_WRITE = 22, 23
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r(.).p .{8} \S+ \d+ *(\[?)")
# The flags of a page are the highest byte of its entry in /proc/PID/pagemap: 0x80 present, 0x20 of
# a file, 1 not shared with another process.
_COPIED = re.compile(rb"[\x81\x83\x85\x87]+")
_MAPPED = re.compile(rb"[\xa0-\xa7]+")

Range = tuple[int, int]
"""Address and length."""


class Pages(NamedTuple):
    """The pages of a program's start that exist before the fork."""

    copied: tuple[Range, ...] = ()
    mapped: tuple[Range, ...] = ()

    def prefault(self) -> None:
        """Copy or map them all now. A kernel before 5.14 cannot, and does nothing."""
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for advice, ranges in ((_POPULATE_WRITE, self.copied), (_POPULATE_READ, self.mapped)):
            for address, length in ranges:
                madvise(address, length, advice)


class Rehearsal:
    """The child that rehearses, and what it has found. `pid` is 0 in the child itself."""

    def __init__(self) -> None:
        self.pid = -1
        self.pages = Pages()
        """None until the child has ended well."""
        self._report = -1
        self._tries = 0

    def is_due(self) -> bool:
        """Whether a child is worth forking: none has ended well, and not too many have failed."""
        return self.pid == -1 and self.pages == Pages() and self._tries < _MOST_TRIES

    def fork(self) -> None:
        """Fork the child, which is to become the program of `spec`."""
        global _report, _mappings
        self._tries += 1
        self._report = _report = os.memfd_create("sublet")
        _mappings = _private_mappings()
        self.pid = os.fork()

    def spec(self) -> WorkerSpec:
        """What the child becomes. It sees no GPU, writes to nowhere and does not last."""
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.alarm(_LONGEST)
        silent = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(silent, number)
        environ = {**os.environ, USE_BFC: "1", BFC_LIMIT: "64", VISIBLE: "-1"}
        environ.pop("OPENBLAS_NUM_THREADS", None)
        spec = {
            "kind": "code",
            "target": _PROGRAM,
            "args": [],
            "argv": [sys.executable, "-c", _PROGRAM],
            "flags": [],
            "environ": environ,
            "ignored": [],
        }
        return cast("WorkerSpec", spec)  # The other fields are for keepers.

    def ended(self, pid: int, status: int) -> None:
        """Take in what the child has found, if this process is it."""
        if pid != self.pid:
            return
        size = os.fstat(self._report).st_size
        if status == 0 and size:
            count, *numbers = array.array("Q", os.pread(self._report, size, 0))
            ranges = tuple(zip(numbers[::2], numbers[1::2], strict=True))
            self.pages = Pages(ranges[:count], ranges[count:])
        os.close(self._report)
        self.pid = -1


_report = -1
"""Where the child writes what it has found."""
_mappings: list[tuple[int, int, bool]] = []
"""Those of the nursery when it forked the child."""


def report() -> None:
    """In the rehearsal's program: note the pages that it has used, and end."""
    copied: list[int] = []
    mapped: list[int] = []
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for start, end, writable in _mappings:
            size = (end - start) // mmap.PAGESIZE
            flags = os.pread(pagemap.fileno(), 8 * size, start // mmap.PAGESIZE * 8)[7::8]
            for kind, found in ((_COPIED if writable else None, copied), (_MAPPED, mapped)):
                for match in kind.finditer(flags) if kind is not None else ():
                    first, last = match.span()
                    found += (start + first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)
    os.write(_report, array.array("Q", [len(copied) // 2, *copied, *mapped]).tobytes())
    os._exit(0)


def _private_mappings() -> list[tuple[int, int, bool]]:
    """Start, end and whether it can be written to, of each private mapping that can be read but
    those of the kernel and the stack."""
    found = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            match = _MAPPING.match(line)
            if match and (not match[4] or "[heap]" in line):
                found.append((int(match[1], 16), int(match[2], 16), match[3] == "w"))
    return found
