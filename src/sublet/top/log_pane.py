"""The pane that follows the output of one job."""

import contextlib
from collections.abc import Callable

from textual.widgets import Log

from sublet.home import Home
from sublet.text import plain
from sublet.top.log_follower import LogFollower
from sublet.views.table import cut
from sublet.wire.rows import JobRow

_FOREGROUND = "It runs in the foreground: its output is in its own terminal."


class LogPane(Log):
    """Shows one job at a time, or none."""

    def __init__(self, home: Home, find: Callable[[int], JobRow | None]) -> None:
        super().__init__(id="log", max_lines=5000)
        self._home = home
        self._find = find
        self._follower: LogFollower | None = None

    @property
    def follows(self) -> int | None:
        """The job whose output is shown."""
        return self._follower.number if self._follower is not None else None

    def follow(self, row: JobRow) -> None:
        """Show the output of this job from now on."""
        self.stop()
        self.clear()
        self.border_title = cut(f"output of #{row.id} {plain(row.name)}", self.app.size.width - 6)
        if row.foreground:
            self.write_line(_FOREGROUND)
        self._follower = LogFollower(self._home, row.id, lambda: self._find(row.id), self._wrote)

    def stop(self) -> None:
        """Follow nothing any more."""
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    def _wrote(self, follower: LogFollower, lines: list[str]) -> None:
        """Called by the follower's thread, which waits: a flood is read as fast as it is shown."""
        with contextlib.suppress(RuntimeError):  # The application ends.
            self.app.call_from_thread(self._show, follower, lines)

    def _show(self, follower: LogFollower, lines: list[str]) -> None:
        if follower is self._follower:  # Another job may be followed by now.
            self.write_lines(lines)
