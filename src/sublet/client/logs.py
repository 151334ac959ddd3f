"""Reads the output of a job that ran without a client, while it grows and afterwards.

Bytes come as they were written. Where the middle of a file was left out to bound the disk (see
`backends.local.logs`), a `Gap` comes in their place: never zeros, also not when the hole is made
while we read.
"""

import contextlib
import errno
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Protocol

from sublet.errors import BadRequest
from sublet.keeper.output_files import Gap, cut

Piece = bytes | Gap
Stream = Literal["both", "stdout", "stderr"]
FINISHED = "finished"
_CHUNK = 1 << 18
_EVERY = 0.1
"""Seconds between looks at a file that is followed."""
_LOOKS_PER_ASK = 5


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
        self.close()

    def close(self) -> None:
        """Read no more."""
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
        found = cut(str(self.path))
        if found is not None and found.size > self._told and self.position >= found.start:
            lost = self._lost(found)
            if lost.size > 0:
                return lost
        size = os.fstat(self._descriptor).st_size
        if self.position >= size:
            return None
        if found is not None and self.position < found.start:
            size = min(size, found.start)  # What was lost is told in its place.
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

    def _lost(self, found: Gap) -> Gap:
        """The file was cut back: what lies behind the first part is not what it was."""
        gap = Gap(found.start, found.size - self._told - max(0, self.position - found.start))
        self._told = found.size
        self.position = found.start
        return gap

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


class Row(Protocol):
    """What has to be known of a job: its state, and its current attempt."""

    @property
    def state(self) -> str:
        """`finished` once it has ended; anything else while it has not."""

    @property
    def attempt_id(self) -> str:
        """The current attempt, such as 13.1."""


class Output(NamedTuple):
    """A piece of what an attempt has written."""

    attempt_id: str
    stream: Stream
    piece: Piece


class JobLogs:
    """The output of one job, attempt after attempt. `find` asks the broker for its row."""

    def __init__(self, directory: Path, number: int, find: Callable[[], Row]) -> None:
        self.directory = directory
        self.number = number
        self._find = find

    def read(
        self, attempt: int | None = None, only: Stream | None = None, tail: int | None = None
    ) -> Iterator[Output]:
        """What is there now, of one attempt: the last that has written, unless one is named."""
        run = self._choose(self._find(), attempt)
        with contextlib.closing(_Attempt(self.directory, run, only, tail)) as current:
            yield from current.read()

    def follow(
        self, attempt: int | None = None, only: Stream | None = None, tail: int | None = None
    ) -> Iterator[Output]:
        """What is there and what comes, until the job, or the attempt that is named, has ended."""
        row = self._find()
        run = row.attempt_id if attempt is None else f"{self.number}.{attempt}"
        while True:
            with contextlib.closing(_Attempt(self.directory, run, only, tail)) as current:
                looks = itertools.count(1)
                # Asked before reading: what was written up to the end is read for certain.
                while row.state != FINISHED and row.attempt_id == run:
                    yield from current.read()
                    time.sleep(_EVERY)
                    if next(looks) % _LOOKS_PER_ASK == 0:
                        row = self._find()
                yield from current.read()
            if attempt is not None or row.attempt_id == run:
                return
            run, tail = row.attempt_id, None

    def _choose(self, row: Row, attempt: int | None) -> str:
        if attempt is not None:
            run = f"{self.number}.{attempt}"
            if not files(self.directory, run):
                raise BadRequest(
                    f"There is no output of attempt {attempt} of job {self.number}.",
                    f"`sublet logs {self.number}` shows the latest.",
                )
            return run
        last = int(row.attempt_id.partition(".")[2])
        for number in range(last, 0, -1):
            if files(self.directory, f"{self.number}.{number}"):
                return f"{self.number}.{number}"
        if row.state == FINISHED:
            raise BadRequest(
                f"There is no output of job {self.number}.",
                "It ran in the foreground, ended before it began, or its files were removed.",
            )
        raise BadRequest(
            f"Job {self.number} has written nothing yet: it is {row.state}.",
            f"`sublet logs -f {self.number}` waits for it, unless it runs in the foreground.",
        )


def files(directory: Path, run: str) -> dict[Stream, Path]:
    """The files of an attempt that exist, by what is in them."""
    found: dict[Stream, Path] = {
        "both": directory / f"{run}.log",
        "stdout": directory / f"{run}.out",
        "stderr": directory / f"{run}.err",
    }
    return {stream: path for stream, path in found.items() if path.exists()}


class _Attempt:
    """The files of one attempt, opened as they appear."""

    def __init__(self, directory: Path, run: str, only: Stream | None, tail: int | None) -> None:
        self._directory = directory
        self._run = run
        self._only = only
        self._tail = tail
        self._open: dict[Stream, Log] = {}

    def read(self) -> Iterator[Output]:
        for stream, path in files(self._directory, self._run).items():
            if self._only not in (None, stream):
                if stream == "both":
                    raise BadRequest(
                        f"Attempt {self._run} wrote both of its streams to one file.",
                        f"Leave --{self._only} out, or submit it with its streams split.",
                    )
                continue
            if stream not in self._open:
                log = Log.open(path)
                if self._tail is not None:
                    log.seek_lines(self._tail)
                self._open[stream] = log
        for stream, log in self._open.items():
            for piece in log.read():
                yield Output(self._run, stream, piece)

    def close(self) -> None:
        for log in self._open.values():
            log.close()
