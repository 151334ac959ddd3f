"""Lines to the engines of this user."""

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

from sublet.channel import async_client
from sublet.channel.sync_client import SyncClient
from sublet.errors import ServingError
from sublet.home import Home


def open_all(but: Path | None = None) -> Iterator[tuple[Path, SyncClient]]:
    """Each engine's socket, and a line to it, which the caller closes; without the one that is
    not wanted. Engines that do not answer are left out."""
    for path in _engines():
        if path == but:
            continue
        try:
            line = SyncClient(async_client.connect(str(path)))
        except ServingError as error:
            if isinstance(error.__cause__, ConnectionRefusedError):
                # An engine listens before its socket has this name, so this one was killed.
                path.unlink(missing_ok=True)
            continue
        yield path, line


def _engines() -> list[Path]:
    """The sockets of engines, those of the newest server first. Its own are in any order: who has a
    model several times has its clients on all of them."""
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in (Home.find().path / "engines").glob("*.sock"):
        with contextlib.suppress(OSError):
            owner = path.name.partition("-")[0]
            found.setdefault(owner, []).append((path.stat().st_mtime_ns, path))
    owners = sorted(found.values(), key=max, reverse=True)
    return [path for own in owners for _, path in random.sample(own, len(own))]
