"""The terms of a lease for the fence, and what its processes hold: `fence` in an attempt's folder.

A page that the broker writes, and a page with a slot for each process, which the fence
(`inside/fence.c`) maps and writes. The broker maps neither: a program can cut the file short, and
whoever has mapped it then dies. So it only reads and writes, and believes nothing that it reads.
"""

from __future__ import annotations

import contextlib
import os
import struct
from typing import NamedTuple

NAME = "fence"
_PAGE = 4096
_TERMS = struct.Struct("<16s4Q")
_BOUND = struct.Struct("<2Q")
_BOUND_AT = 16
_SLOT = struct.Struct("<2Q")
_PID_BITS = 22
_ALL = (1 << 64) - 1


class Holder(NamedTuple):
    """A process, by its number and its start, and the bytes that it holds."""

    pid: int
    start: int
    held: int


def create(directory: str, version: str, bound: int, most: int, told: int) -> None:
    """Make the file: `bound` is what the processes of the lease may hold together, `most` what that
    may become, `told` how large a card they are told of."""
    terms = _TERMS.pack(version.encode("ascii"), bound, bound ^ _ALL, most, told)
    path = os.path.join(directory, NAME)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        # Every byte is written: a page of a file that has no space yet may be refused later.
        file.write(terms.ljust(2 * _PAGE, b"\0"))


def exists(directory: str) -> bool:
    """Whether the programs of this attempt are fenced."""
    return os.path.exists(os.path.join(directory, NAME))


def write_bound(directory: str, bound: int) -> None:
    """Let the processes of the lease hold so much from now on. Does nothing without a fence."""
    with contextlib.suppress(OSError):
        path = os.path.join(directory, NAME)
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, _BOUND.pack(bound, bound ^ _ALL), _BOUND_AT)
        finally:
            os.close(descriptor)


def read_bound(directory: str) -> int | None:
    """What the processes of the lease may hold; None without a fence."""
    data = _read(directory)
    if data is None:
        return None
    bound: int = _BOUND.unpack_from(data, _BOUND_AT)[0]
    return bound


def holders(directory: str) -> list[Holder]:
    """The processes that have allocated, dead ones included; none without a fence."""
    data = _read(directory)
    if data is None:
        return []
    found = _SLOT.iter_unpack(data[_PAGE:])
    return [
        Holder(owner & ((1 << _PID_BITS) - 1), owner >> _PID_BITS, held)
        for owner, held in found
        if owner
    ]


def _read(directory: str) -> bytes | None:
    try:
        path = os.path.join(directory, NAME)
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            data = os.pread(descriptor, 2 * _PAGE, 0)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    return data if len(data) == 2 * _PAGE else None
