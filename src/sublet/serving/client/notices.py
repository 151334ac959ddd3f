"""Which versions a server does not serve, and why, for programs that call its engines directly.

Owns a file beside the engines' sockets: one of each server that has something to say. The server
holds a lock on it as long as it lives, so what a killed one has left is known by that, and removed
by whoever finds it.
"""

import contextlib
import fcntl
import os
from pathlib import Path

import msgspec
from msgspec import Struct

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.home import Home
from sublet.serving.catalogue import Catalogue, State
from sublet.wire.decoders import made_once

_NAME = "*.notices"


class Notice(Struct, frozen=True):
    """A version that failed, or was put away."""

    model: str
    version: int
    code: Code
    error: str


class Notices:
    """The notices of one server, in a file that it owns."""

    def __init__(self) -> None:
        directory = Home.find().path / "engines"
        self._path = directory / _NAME.replace("*", f"{os.getpid()}-{os.urandom(4).hex()}")
        self._notices: list[Notice] = []
        self._lock = -1

    def tell(self, catalogue: Catalogue) -> None:
        """Say what is wrong now. A disk that cannot take it keeps nothing from being served."""
        notices = [
            Notice(version.model, version.number, version.code, version.error)
            for model in catalogue.models.values()
            for version in model.versions.values()
            if version.state is State.END and version.error
        ]
        if notices != self._notices:
            self._notices = notices
            with contextlib.suppress(OSError):
                self._write()

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _write(self) -> None:
        if not self._notices:
            self.close()
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._path.with_suffix(".part")
        lock = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            # Nobody sees it before it is locked.
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.write(lock, msgspec.json.encode(self._notices))
            os.rename(draft, self._path)
        except OSError:
            os.close(lock)
            raise
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = lock


def read() -> list[Notice]:
    """The notices of all servers of this user."""
    found: list[Notice] = []
    for path in sorted((Home.find().path / "engines").glob(_NAME)):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            if _left_behind(path):
                path.unlink()
            else:
                found += _decoder().decode(path.read_bytes())
    return found


def refusal(model: str, version: int | None) -> ServingError | None:
    """Why a version is not served, the newest if none is named; None if nobody says."""
    notices = [one for one in read() if one.model == model and version in (None, one.version)]
    if not notices:
        return None
    last = max(notices, key=lambda one: one.version)
    return ServingError(last.error, last.code)


@made_once
def _decoder() -> msgspec.json.Decoder[list[Notice]]:
    return msgspec.json.Decoder(list[Notice])


def _left_behind(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # A server that lives lets a file go only after it has put another in its place.
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
