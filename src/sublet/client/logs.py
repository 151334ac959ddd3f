"""Reads the output of a job that ran without a client, while it grows and afterwards.

Bytes come as they were written. Where the middle of a file was left out to bound the disk (see
`backends.local.logs`), a `Gap` comes in their place: never zeros, also not when the hole is made
while we read.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from sublet.backends.local.logs import Gap, cut

Piece = bytes | Gap
_CHUNK = 1 << 18


class Log:
    """One file of output, read from a position that only goes forward."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.position = 0
        self._descriptor = descriptor
        self._told = 0
        """Bytes told as lost where the file system could make no holes."""

    @classmethod
    def open(cls, path: Path) -> "Log":
        """FileNotFoundError if there is none."""
        return cls(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def __enter__(self) -> "Log":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def read(self) -> Iterator[Piece]:
        """What has come since the last time, to the end that the file has now."""
        while (piece := self._next()) is not None:
            yield piece

    def seek_lines(self, count: int) -> None:
        """Go to where the last `count` lines begin, or behind the last gap if that comes first."""
        end = os.fstat(self._descriptor).st_size
        first = self._behind_last_gap(end)
        position, wanted = end, count
        while position > first and wanted >= 0:
            start = max(first, position - _CHUNK)
            data = os.pread(self._descriptor, position - start, start)
            if position == end and data.endswith(b"\n"):
                wanted += 1
            lines = data.count(b"\n")
            if lines >= wanted > 0:
                self.position = start + _after_last(data, wanted)
                return
            wanted -= lines
            position = start
        self.position = first if count else end

    def _next(self) -> Piece | None:
        lost = self._lost()
        if lost is not None:
            return lost
        size = os.fstat(self._descriptor).st_size
        if self.position >= size:
            return None
        data = self._data(self.position)
        if data > self.position:
            gap = Gap(self.position, data - self.position)
            self.position = data
            return gap
        piece = os.pread(self._descriptor, min(_CHUNK, size - self.position), self.position)
        if not piece:
            return None
        # A hole never becomes data again: what is data after the read was data during it.
        hole = self._hole(self.position)
        if hole == self.position:
            return self._next()
        piece = piece[: hole - self.position]
        self.position += len(piece)
        return piece

    def _lost(self) -> Gap | None:
        """The file was cut back: what lies behind the first part is not what it was."""
        found = cut(str(self.path))
        if found is None or found.size <= self._told or self.position < found.start:
            return None
        gap = Gap(found.start, found.size - self._told - max(0, self.position - found.start))
        self._told = found.size
        self.position = found.start
        return gap if gap.size > 0 else None

    def _data(self, position: int) -> int:
        """Where data begins, from this position on; the end if nothing but a hole is left."""
        try:
            return os.lseek(self._descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return max(position, os.fstat(self._descriptor).st_size)
            return position

    def _hole(self, position: int) -> int:
        try:
            return os.lseek(self._descriptor, position, os.SEEK_HOLE)
        except OSError:
            return os.fstat(self._descriptor).st_size

    def _behind_last_gap(self, end: int) -> int:
        position = 0
        while True:
            data = self._data(position)
            hole = self._hole(data) if data < end else end
            if hole >= end:
                found = cut(str(self.path))
                return max(data if data < end else position, found.start if found else 0)
            position = hole


def _after_last(data: bytes, count: int) -> int:
    """The index just behind the `count`th newline from the end."""
    position = len(data)
    for _ in range(count):
        position = data.rindex(b"\n", 0, position)
    return position + 1
