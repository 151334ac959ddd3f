"""Finds this user's sweeps, and reads them: for pages and tables, without TensorFlow.

Sublet's home has a directory `sweeps` with an entry for each recent sweep: the sweep's own
directory if nobody has named one, else a link to it. What is read are `records.Sweep`.
"""

import contextlib
import os
import re
import shutil
import time
from pathlib import Path

from msgspec import structs

from sublet.errors import SubletError
from sublet.home import Home
from sublet.sweeps import journal
from sublet.sweeps.records import Sweep

KEPT = 50
"""How many sweeps are kept in the home; older ones are removed, links without their sweeps."""
_ID = re.compile(r"[\w.-]+")


def recent(home: Home, count: int = KEPT) -> list[Sweep]:
    """The sweeps that run or ran last, the newest first. What cannot be read is left out."""
    found = []
    for entry in _entries(home)[:count]:
        with contextlib.suppress(SubletError, OSError):
            if (sweep := _read(entry)) is not None:
                found.append(sweep)
    return found


def read(home: Home, id: str) -> Sweep | None:
    """One of the recent sweeps; None if there is none of this name."""
    entry = home.sweeps / id
    if not _ID.fullmatch(id) or not os.path.lexists(entry):
        return None
    return _read(entry)


def new_id() -> str:
    """A name for a sweep that begins now; names sort by time."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{os.urandom(2).hex()}"


def enter(home: Home, id: str, directory: Path | None) -> Path:
    """Note a sweep in the home, and return its directory: the given one, or one in the home."""
    home.sweeps.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in _entries(home)[KEPT - 1 :]:
        _remove(old)
    if directory is None:
        (home.sweeps / id).mkdir(mode=0o700)
        return home.sweeps / id
    for entry in _entries(home):
        if entry.is_symlink() and _target(entry) == directory:
            entry.unlink()  # It goes on: it is listed once, as the newest.
    (home.sweeps / id).symlink_to(directory)
    return directory


def _entries(home: Home) -> list[Path]:
    """The newest first."""
    try:
        names = [entry.name for entry in os.scandir(home.sweeps)]
    except OSError:
        return []
    return [home.sweeps / name for name in sorted(names, reverse=True)]


def _read(entry: Path) -> Sweep | None:
    sweep = journal.read(_target(entry))
    # One that goes on in its directory is listed anew, and known by that entry.
    return None if sweep is None else structs.replace(sweep, id=entry.name)


def _target(entry: Path) -> Path:
    return Path(os.readlink(entry)) if entry.is_symlink() else entry


def _remove(entry: Path) -> None:
    if entry.is_symlink():
        entry.unlink(missing_ok=True)
    elif not journal.is_held(entry):
        shutil.rmtree(entry, ignore_errors=True)
