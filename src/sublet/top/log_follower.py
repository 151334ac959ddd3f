"""Follows the output of one job in a thread, as lines that are safe to show."""

import threading
from collections.abc import Callable

from sublet.client.log_lines import shown_line
from sublet.client.logs import JobLogs
from sublet.errors import SubletError
from sublet.home import Home
from sublet.keeper.output_files import Gap
from sublet.units import format_bytes
from sublet.wire.rows import JobRow

_TAIL = 500
"""Lines from before it was opened."""
_LONGEST = 1 << 16
"""Bytes that are kept of a line that does not end."""


class _Closed(Exception):
    """Nobody wants the output any more."""


class LogFollower:
    """One thread. `find` gives the job's row as it is now; None if it is not known any more."""

    def __init__(
        self,
        home: Home,
        number: int,
        find: Callable[[], JobRow | None],
        write: Callable[["LogFollower", list[str]], None],
    ) -> None:
        self.number = number
        self._find = find
        self._write = write
        self._last: JobRow | None = None
        self._closed = False
        self._begun = b""
        """A line that has not ended yet."""
        self._logs = JobLogs(home.path / "logs", number, self._row)
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def close(self) -> None:
        """Stop soon; nothing is written any more."""
        self._closed = True

    def _row(self) -> JobRow:
        self._last = self._find() or self._last
        if self._closed or self._last is None:
            raise _Closed
        return self._last

    def _run(self) -> None:
        try:
            for output in self._logs.follow(tail=_TAIL):
                if self._closed:
                    return
                if isinstance(output.piece, Gap):
                    self._write(self, [f"… {format_bytes(output.piece.size)} left out …"])
                else:
                    self._take(output.piece)
            self._take(b"\n" if self._begun else b"")
            self._write(self, ["(the job has ended)"])
        except _Closed:
            return
        except (SubletError, OSError) as error:
            self._write(self, [str(error)])

    def _take(self, data: bytes) -> None:
        *lines, begun = (self._begun + data).split(b"\n")
        self._begun = begun[:_LONGEST]
        if lines:
            self._write(self, [shown_line(line) for line in lines])
