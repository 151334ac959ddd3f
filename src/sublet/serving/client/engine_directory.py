"""Where an engine listens, and the directory for what is made for it.

Owns that nothing is left behind: the owner removes both when its engine has ended, the engine when
its owner is gone. Where neither could (both were killed, or the broker was quicker to end the
engine), the next owner finds a directory that nobody has locked.
"""

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

from sublet.engine.socket_files import files_of
from sublet.errors import BadRequest
from sublet.home import Home

_LONGEST = 100
"""Bytes of a socket's path; the kernel takes a few more."""


class EngineDirectory:
    """One engine's, in the hands of its owner. A forked child of that leaves it alone."""

    def __init__(self, home: Home) -> None:
        engines = home.path / "engines"
        home.make()
        engines.mkdir(mode=0o700, exist_ok=True)
        engines.chmod(0o700)
        _sweep(engines)
        self.socket = str(engines / f"{os.getpid()}-{os.urandom(4).hex()}.sock")
        if len(os.fsencode(self.socket)) > _LONGEST:
            raise BadRequest(
                f"The path {self.socket} is too long for a socket.",
                "Set SUBLET_HOME to a shorter one.",
            )
        self.files = files_of(self.socket)
        """A directory."""
        draft = f"{self.files}.part"
        os.mkdir(draft, mode=0o700)
        self._lock = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # A file system without locks: it is never swept.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Nobody else sees it before it is locked.
        os.rename(draft, self.files)

    def close(self) -> None:
        """The engine has ended, or was never started."""
        with contextlib.suppress(OSError):
            os.unlink(self.socket)
        shutil.rmtree(self.files, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _sweep(engines: Path) -> None:
    """Remove the directories of owners that were killed together with their engines."""
    for files in engines.glob(files_of("*.sock")):
        with contextlib.suppress(OSError):
            directory = os.open(files, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(files, ignore_errors=True)
                files.with_suffix(".sock").unlink(missing_ok=True)
            finally:
                os.close(directory)
