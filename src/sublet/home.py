"""The state directory of this user's broker, and what is where in it."""

import os
import stat

from sublet.errors import WorldError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

_ROOT = 0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OURS = (
    "broker.lock",
    "broker.log",
    "engines",
    "ledger.commits",
    "ledger.sqlite",
    "ledger.sqlite-shm",
    "ledger.sqlite-wal",
    "page.json",
)
"""What we read in a home, beside its directories."""


class Home:
    """The state directory: private to the user, named by SUBLET_HOME or the XDG state home.

    A client needs no more of it than the socket's name, so `pathlib` is loaded for the others.
    """

    def __init__(self, path: "Path | str") -> None:
        self.name = os.fspath(path)
        self.socket = os.path.join(self.name, "broker.sock")

    @classmethod
    def find(cls) -> "Home":
        """The home that this environment names."""
        named = os.environ.get("SUBLET_HOME")
        if not named:
            state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
            named = os.path.join(state, "sublet")
        named = os.path.expanduser(named)
        return cls(named if os.path.isabs(named) else os.path.join(os.getcwd(), named))

    @property
    def path(self) -> "Path":
        """The state directory as a path."""
        from pathlib import Path

        return Path(self.name)

    @property
    def lock(self) -> "Path":
        """Held by the broker that runs."""
        return self.path / "broker.lock"

    @property
    def log(self) -> "Path":
        """The broker's log."""
        return self.path / "broker.log"

    @property
    def ledger(self) -> "Path":
        """The broker's SQLite file."""
        return self.path / "ledger.sqlite"

    @property
    def runs(self) -> "Path":
        """A directory for each attempt that is not settled."""
        return self.path / "runs"

    @property
    def logs(self) -> "Path":
        """The output of jobs that run without a client."""
        return self.path / "logs"

    @property
    def micro_batches(self) -> "Path":
        """The sizes of micro-batches that were found for programs, a file for each."""
        return self.path / "micro-batches"

    @property
    def sweeps(self) -> "Path":
        """The sweeps that ran last: their directories, or links to them."""
        return self.path / "sweeps"

    def make(self) -> None:
        """Create the directories, private to the user; refuse what others have made or can write
        to. A directory that is there already keeps its permissions."""
        path = self.path
        try:
            for directory in (path, self.runs, self.logs):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._check(directory)
            for name in _OURS:
                self._check(path / name)
        except OSError as error:
            raise WorldError(
                f"The state directory {path} cannot be used: {error.strerror}.",
                "Make it writable, or set SUBLET_HOME to a directory that is.",
            ) from error

    def _check(self, path: "Path") -> None:
        """Nobody else may have made this or be able to change it: we would run what it says."""
        try:
            entry = path.lstat()
            found = path.stat() if path == self.path else entry
        except FileNotFoundError:
            return
        if found.st_uid != os.getuid() or entry.st_uid not in (os.getuid(), _ROOT):
            raise WorldError(
                f"{path} belongs to another user.",
                "Set SUBLET_HOME to a directory of your own.",
            )
        if found.st_mode & _OTHERS_WRITE and stat.S_ISDIR(found.st_mode):
            raise WorldError(
                f"Other users can write to the state directory {path}.",
                "Set SUBLET_HOME to a directory of your own. Or, if nothing in this one is theirs: "
                f"chmod 700 {path}",
            )
