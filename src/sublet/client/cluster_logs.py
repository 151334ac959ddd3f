"""The output of all tasks of a cluster, line by line."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from sublet.client.logs import Log, Piece, files
from sublet.keeper.output_files import Gap
from sublet.units import format_bytes
from sublet.wire.rows import JobRow

_LONGEST = 1 << 16
"""Bytes after which a line is shown although it has not ended."""
_REMEMBERED = 200
"""So many of a task's last lines are kept."""


class TaskLog:
    """The lines of one task, attempt after attempt."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._attempt_id = ""
        self._log: Log | None = None
        self._rest = b""
        self.last: deque[str] = deque(maxlen=_REMEMBERED)
        """The last lines of the current attempt."""

    def follow(self, row: JobRow) -> Iterator[str]:
        """Turn to another attempt if there is one; yields what was left of the one before."""
        if row.attempt_id == self._attempt_id:
            return
        yield from self.close()
        self._attempt_id = row.attempt_id
        self.last.clear()

    def read(self) -> Iterator[str]:
        """The lines that have come since the last read."""
        if self._log is None:
            found = files(self._directory, self._attempt_id) if self._attempt_id else {}
            if "both" not in found:
                return
            self._log = Log.open(found["both"])
        for piece in self._log.read():
            yield from self._lines(piece)

    def close(self) -> Iterator[str]:
        """All that is left, and a last line that was not ended."""
        yield from self.read()
        if self._rest:
            yield self._keep(self._rest)
            self._rest = b""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _lines(self, piece: Piece) -> Iterator[str]:
        if isinstance(piece, Gap):
            yield self._keep(f"… {format_bytes(piece.size)} left out …".encode())
            return
        *lines, self._rest = (self._rest + piece).split(b"\n")
        yield from map(self._keep, lines)
        if len(self._rest) > _LONGEST:
            yield self._keep(self._rest)
            self._rest = b""

    def _keep(self, line: bytes) -> str:
        """A line as text: of one that was written over, such as a progress bar, the last state."""
        states = [state for state in line.split(b"\r") if state]
        text = (states[-1] if states else b"").decode(errors="replace")
        self.last.append(text)
        return text
