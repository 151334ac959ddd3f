"""A report that can be sent to others: versions, cards and checks. It has no paths, no names of
users or hosts, and nothing of the environment."""

import getpass
import os
import platform
import re
import socket
from pathlib import Path

import msgspec
from msgspec import Struct

import sublet
from sublet.tools.selftest.checks import Check
from sublet.wire.messages import Snapshot

_PATH = re.compile(r"(?<![\w.~-])/(?:[^\s:;,'\"()\[\]{}]+/)+([^\s:;,'\"()\[\]{}/]*)")
_UUID = re.compile(r"\b(GPU|MIG)-[0-9A-Za-z-]+")


class Card(Struct, frozen=True):
    """A device of the machine."""

    id: str
    name: str
    bytes: int
    compute: tuple[int, int] | None


class SelftestReport(Struct, frozen=True):
    """What was found on a machine."""

    sublet: str
    python: str
    system: str
    processors: int
    driver: str
    devices: tuple[Card, ...]
    seconds: float
    checks: tuple[Check, ...]

    @property
    def good(self) -> bool:
        """Whether no check has failed."""
        return all(check.state != "fail" for check in self.checks)


def make(snapshot: Snapshot, checks: list[Check], seconds: float) -> SelftestReport:
    """The report, with everything left out that says whose machine this is."""
    libc = " ".join(platform.libc_ver())
    return SelftestReport(
        sublet=sublet.__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()} {libc}".strip(),
        processors=os.cpu_count() or 0,
        driver=scrub(snapshot.driver),
        devices=tuple(
            Card(row.device.id, row.device.name, row.device.capacity, row.device.compute)
            for row in snapshot.devices
        ),
        seconds=round(seconds, 1),
        checks=tuple(
            Check(check.name, check.state, scrub(check.seen), scrub(check.advice))
            for check in checks
        ),
    )


def scrub(text: str) -> str:
    """The text without directories, UUIDs, and the names of the user and the host."""
    text = _UUID.sub(r"\1-…", _PATH.sub(r"…/\1", text))
    for name, mark in ((_user(), "<user>"), (socket.gethostname(), "<host>")):
        if len(name) > 1:
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", mark, text)
    return text


def write(report: SelftestReport, path: Path) -> None:
    """Write it as JSON, for people, too. Raises OSError."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
