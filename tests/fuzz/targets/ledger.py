"""The ledger's file and its journal: refused as they are, or sound; and `recover` mends them.

length of the file (4 bytes), the file, its journal
"""

import contextlib
import shutil
import sqlite3
import struct
from pathlib import Path

from fuzz import scratch
from fuzz.driver import Target
from sublet.broker.ledger import Ledger
from sublet.broker.recovery import recover
from sublet.domain.job import Finished, Outcome
from sublet.errors import WorldError
from sublet.home import Home
from support.jobs import job

_LENGTH = struct.Struct("<I")


def target() -> Target:
    root = scratch.directory()
    number = 0

    def feed(data: bytes) -> None:
        nonlocal number
        number += 1
        home = Home(root / str(number))
        home.make()
        try:
            _feed(home, data)
        finally:
            shutil.rmtree(home.path)

    return Target(feed, [_good(root / "whole", True), _good(root / "journal", False)])


def _good(directory: Path, checkpoint: bool) -> bytes:
    """A ledger with a few jobs, all of them in the file or some in its journal."""
    directory.mkdir()
    path = directory / "ledger.sqlite"
    ledger = Ledger.open(path)
    for number in range(1, 6):
        ended = Finished(2.0, Outcome("exited", 0)) if number < 3 else None
        ledger.save(job(number, ended))
    ledger.note("boot", "this one")
    ledger.commit()
    if checkpoint:
        ledger.close()
    found = path.read_bytes()
    journal = Path(f"{path}-wal")
    beside = journal.read_bytes() if journal.exists() else b""
    if not checkpoint:
        ledger.close()
    return _LENGTH.pack(len(found)) + found + beside


def _feed(home: Home, data: bytes) -> None:
    length = _LENGTH.unpack(data[:4].ljust(4, b"\0"))[0]
    home.ledger.write_bytes(data[4 : 4 + length])
    if journal := data[4 + length :]:
        Path(f"{home.ledger}-wal").write_bytes(journal)
    if not _is_sound(home):
        with contextlib.suppress(WorldError):
            recover(home)
            assert _is_sound(home), "it was mended, and is not sound"


def _is_sound(home: Home) -> bool:
    """Whether it opens; then all that a broker reads of it can be read."""
    try:
        ledger = Ledger.open(home.ledger)
    except WorldError as wrong:
        if not wrong.hint:
            raise
        return False
    try:
        ledger.live()
        ledger.latest(1000)
        ledger.numbers()
        ledger.last_id()
        ledger.with_token("token-1")
        ledger.fact("boot")
        with contextlib.suppress(sqlite3.Error):  # As the disk may fail; the broker goes on.
            ledger.save(job(9))
            ledger.commit()
    finally:
        ledger.close()
    return True
