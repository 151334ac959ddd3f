"""Where the broker of this user lives on disk."""

import os
from pathlib import Path

from sublet.errors import WorldError


class Home:
    """The state directory: private to the user, named by SUBLET_HOME or the XDG state home."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = path / "broker.sock"
        self.lock = path / "broker.lock"
        self.log = path / "broker.log"
        self.ledger = path / "ledger.sqlite"
        self.runs = path / "runs"

    @classmethod
    def find(cls) -> "Home":
        """The home that this environment names."""
        named = os.environ.get("SUBLET_HOME")
        if named:
            return cls(Path(named).expanduser().absolute())
        state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
        return cls(Path(state).expanduser().absolute() / "sublet")

    def make(self) -> None:
        """Create the directories, private to the user."""
        try:
            for directory in (self.path, self.runs):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.path.stat().st_uid != os.getuid():
                raise WorldError(
                    f"The state directory {self.path} belongs to another user.",
                    "Set SUBLET_HOME to a directory of your own.",
                )
            self.path.chmod(0o700)
        except OSError as error:
            raise WorldError(
                f"The state directory {self.path} cannot be used: {error.strerror}.",
                "Make it writable, or set SUBLET_HOME to a directory that is.",
            ) from error
