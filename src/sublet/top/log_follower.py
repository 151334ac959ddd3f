"""Follows the output of one job in a thread, as lines that are safe to show."""

import re
import threading
from collections.abc import Callable

from sublet.client.logs import JobLogs
from sublet.errors import SubletError
from sublet.home import Home
from sublet.keeper.output_files import Gap
from sublet.text import plain
from sublet.units import format_bytes
from sublet.wire.rows import JobRow

_TAIL = 500
"""Lines from before it was opened."""
_LONGEST = 4000
"""Characters of a line; of a longer one the end is shown."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
"""Colours, motions and titles."""


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
        self._begun = ""
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
                    self._take(output.piece.decode(errors="replace"))
            self._take("\n" if self._begun else "")
            self._write(self, ["(the job has ended)"])
        except _Closed:
            return
        except (SubletError, OSError) as error:
            self._write(self, [str(error)])

    def _take(self, text: str) -> None:
        *lines, begun = (self._begun + text).split("\n")
        self._begun = begun[-_LONGEST:]
        if lines:
            self._write(self, [shown(line) for line in lines])


def shown(line: str) -> str:
    """What a terminal would show of this line at its end: progress bars write over themselves."""
    rest = line[-_LONGEST:].rstrip("\r").rpartition("\r")[2]
    return plain(_ESCAPES.sub("", rest).replace("\b", "").expandtabs())
