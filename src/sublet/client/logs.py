"""Reads the output of a job in the queue, while it grows and afterwards.

Bytes come as they were written. Where the keeper has cut the middle out of a file to bound its size
(`keeper.output_files`), a `Gap` comes instead: never zeros, even if it is cut while we read.
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
from sublet.keeper.output_files import Gap, cut, size_at

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
        self._reported = 0
        """Lost bytes that were returned as a gap, where the file system can make no holes."""

    @classmethod
    def open(cls, path: Path) -> "Log":
        """Open a file of output; raises FileNotFoundError if there is none."""
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
        os.close(self._descriptor)

    def read(self) -> Iterator[Piece]:
        """What was written since the last read, up to the file's end now."""
        while (piece := self._next()) is not None:
            yield piece

    def seek_lines(self, count: int) -> None:
        """Go to the start of the last `count` lines, or behind the last gap if that is later."""
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

    def seek_time(self, moment: float) -> None:
        """Go forward to the first line that may have been written since then."""
        if cut(str(self.path)) is not None:
            return  # Positions are not what they were.
        end = os.fstat(self._descriptor).st_size
        position = min(size_at(str(self.path), moment), end)
        start = max(0, position - _CHUNK)
        newline = os.pread(self._descriptor, position - start, start).rfind(b"\n")
        self.position = max(self.position, start + newline + 1 if newline >= 0 else start)

    def _next(self) -> Piece | None:
        found = cut(str(self.path))
        if found is not None and found.size > self._reported and self.position >= found.start:
            lost = self._lost(found)
            if lost.size > 0:
                return lost
        size = os.fstat(self._descriptor).st_size
        if self.position >= size:
            return None
        if found is not None and self.position < found.start:
            size = min(size, found.start)  # The gap comes in its place.
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
        """The gap of a file that was cut back, as far as it was not returned before."""
        gap = Gap(found.start, found.size - self._reported - max(0, self.position - found.start))
        self._reported = found.size
        self.position = found.start
        return gap

    def _data(self, position: int) -> int:
        """The next position with data; the end of the file if only a hole is left."""
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
    """What is needed of a job's row: its state and its current attempt."""

    @property
    def state(self) -> str:
        """`finished` once it has ended; anything else while it has not."""

    @property
    def attempt_id(self) -> str:
        """The current attempt, such as 13.1."""


class Output(NamedTuple):
    """A piece of an attempt's output."""

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
        self,
        attempt: int | None = None,
        only: Stream | None = None,
        tail: int | None = None,
        since: float | None = None,
    ) -> Iterator[Output]:
        """The output so far of one attempt; by default, of the last that has written anything."""
        run = self._choose(self._find(), attempt)
        with contextlib.closing(_Attempt(self.directory, run, only, tail, since)) as current:
            yield from current.read()

    def follow(
        self,
        attempt: int | None = None,
        only: Stream | None = None,
        tail: int | None = None,
        since: float | None = None,
    ) -> Iterator[Output]:
        """The output so far and all that comes, until the job, or the named attempt, has ended."""
        row = self._find()
        run = row.attempt_id if attempt is None else f"{self.number}.{attempt}"
        while True:
            with contextlib.closing(_Attempt(self.directory, run, only, tail, since)) as current:
                looks = itertools.count(1)
                # The state is asked for before reading: so nothing written up to the end is missed.
                while row.state != FINISHED and row.attempt_id == run:
                    yield from current.read()
                    time.sleep(_EVERY)
                    if next(looks) % _LOOKS_PER_ASK == 0:
                        row = self._find()
                yield from current.read()
            if attempt is not None or row.attempt_id == run:
                return
            run, tail, since = row.attempt_id, None, None

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
                f"Job {self.number} has no output here.",
                "It ran in the foreground, ended before it began, or its files were removed.",
            )
        raise BadRequest(
            f"Job {self.number} has written nothing yet: it is {row.state}.",
            f"`sublet logs -f {self.number}` waits for it, unless it runs in the foreground.",
        )


def files(directory: Path, run: str) -> dict[Stream, Path]:
    """The output files of an attempt that exist, by stream."""
    found: dict[Stream, Path] = {
        "both": directory / f"{run}.log",
        "stdout": directory / f"{run}.out",
        "stderr": directory / f"{run}.err",
    }
    return {stream: path for stream, path in found.items() if path.exists()}


class _Attempt:
    """The files of one attempt, opened as they appear."""

    def __init__(
        self,
        directory: Path,
        run: str,
        only: Stream | None,
        tail: int | None,
        since: float | None,
    ) -> None:
        self._directory = directory
        self._run = run
        self._only = only
        self._tail = tail
        self._since = since
        """Seconds since the epoch."""
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
                if self._since is not None:
                    log.seek_time(self._since)
                self._open[stream] = log
        for stream, log in self._open.items():
            for piece in log.read():
                yield Output(self._run, stream, piece)

    def close(self) -> None:
        for log in self._open.values():
            log.close()
