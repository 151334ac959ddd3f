"""Where the broker of this user lives on disk."""

import os

from sublet.errors import WorldError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


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
        """The directory itself."""
        from pathlib import Path

        return Path(self.name)

    @property
    def lock(self) -> "Path":
        """Held by the broker that runs."""
        return self.path / "broker.lock"

    @property
    def log(self) -> "Path":
        """The broker's own words."""
        return self.path / "broker.log"

    @property
    def ledger(self) -> "Path":
        """The broker's only store."""
        return self.path / "ledger.sqlite"

    @property
    def runs(self) -> "Path":
        """A directory for each attempt that is not settled."""
        return self.path / "runs"

    @property
    def logs(self) -> "Path":
        """What jobs without a terminal have said."""
        return self.path / "logs"

    def make(self) -> None:
        """Create the directories, private to the user."""
        path = self.path
        try:
            for directory in (path, self.runs, self.logs):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.stat().st_uid != os.getuid():
                raise WorldError(
                    f"The state directory {path} belongs to another user.",
                    "Set SUBLET_HOME to a directory of your own.",
                )
            path.chmod(0o700)
        except OSError as error:
            raise WorldError(
                f"The state directory {path} cannot be used: {error.strerror}.",
                "Make it writable, or set SUBLET_HOME to a directory that is.",
            ) from error
