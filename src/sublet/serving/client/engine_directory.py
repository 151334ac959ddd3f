"""Where an engine listens, and the directory for what is made for it.

Owns that nothing is left behind: the owner removes both when its engine has ended, the engine when
its owner is gone. Where neither could (both were killed, or the broker was quicker to end the
engine), the next owner finds a directory that nobody has locked.
"""

import contextlib
import fcntl
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import convert

from sublet.channel import async_client
from sublet.channel.sync_client import SyncClient
from sublet.engine import files_of
from sublet.errors import BadRequest, ServingError
from sublet.home import Home
from sublet.serving.client import notices
from sublet.serving.metrics import Row, Sample

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
        self.files = files_of(self.socket)  # The engine's own directory.
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


def open_all(but: Path | None = None) -> Iterator[tuple[Path, SyncClient]]:
    """A client of each engine but one, which the caller closes; engines that do not answer are
    left out."""
    for path in _engines():
        if path == but:
            continue
        try:
            client = SyncClient(async_client.connect(str(path)))
        except ServingError as error:
            if isinstance(error.__cause__, ConnectionRefusedError):
                # An engine listens before its socket has this name, so this one was killed.
                path.unlink(missing_ok=True)
            continue
        yield path, client


def _engines() -> list[Path]:
    """The sockets of engines, those of the newest server first, in random order: clients of a
    model with several replicas spread over them."""
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in (Home.find().path / "engines").glob("*.sock"):
        with contextlib.suppress(OSError):
            owner = path.name.partition("-")[0]
            found.setdefault(owner, []).append((path.stat().st_mtime_ns, path))
    owners = sorted(found.values(), key=max, reverse=True)
    return [path for own in owners for _, path in random.sample(own, len(own))]


_PATIENCE = 5.0  # Seconds for an engine to answer.


def model_history(engine: str, model: str, version: int) -> list[Sample]:
    """What this engine's version did in the last day; nothing if the engine does not answer."""
    path = Home.find().path / "engines" / f"{engine}.sock"
    if path not in _engines():
        return []
    try:
        client = SyncClient(async_client.connect(str(path)))
    except ServingError:
        return []
    try:
        asked = {"ask": "history", "model": model, "version": version}
        return convert(client.ask(asked, _PATIENCE), list[Sample])
    except ServingError:
        return []
    finally:
        client.close()


def list_models() -> list[Row]:
    """All versions that engines have or servers cannot serve, by name; silent engines are left
    out."""
    rows: list[Row] = []
    for path, client in open_all():
        try:
            reports: Any = client.ask({"ask": "models"}, _PATIENCE)
            rows += [Row.read(one, path.stem, str(one.get("device") or "")) for one in reports]
        except ServingError:
            continue
        finally:
            client.close()
    known = {(one.model, one.version) for one in rows}
    rows += [
        Row(one.model, one.version, state="failed", error=one.error)
        for one in notices.read()
        if (one.model, one.version) not in known
    ]
    return sorted(rows, key=lambda one: (one.model, one.version))
