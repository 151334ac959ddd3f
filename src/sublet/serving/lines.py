"""Lines to the engines of this user."""

from collections.abc import Iterator
from pathlib import Path

from sublet.channel import port
from sublet.channel.line import Line
from sublet.errors import ServingError
from sublet.home import Home


def open_all() -> Iterator[tuple[Path, Line]]:
    """Each engine's socket, and a line to it, which the caller closes; the newest first. Engines
    that do not answer are left out."""
    for path in sorted((Home.find().path / "engines").glob("*.sock"), key=_age):
        try:
            line = Line(port.connect(str(path)))
        except ServingError as error:
            if isinstance(error.__cause__, ConnectionRefusedError):
                # An engine listens before its socket has this name, so this one was killed.
                path.unlink(missing_ok=True)
            continue
        yield path, line


def _age(path: Path) -> int:
    try:
        return -path.stat().st_mtime_ns
    except OSError:
        return 0
