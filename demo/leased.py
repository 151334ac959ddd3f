"""The same programs through `sublet run`, all asked for at once.

Owns one broker in a home of its own, from its start to its end. What it asks Sublet is what
`sublet status --json` and `--report` say.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from demo import race
from demo.catalogue import PROGRAMS, Program
from demo.devices import Device
from demo.mark import Mark
from demo.race import Entry, Moment, Race
from sublet.client.connection import connect
from sublet.home import Home
from sublet.wire.messages import AskStatus, Snapshot

_LONGEST_END = 60


@dataclass(frozen=True)
class Report:
    """What `sublet run --report` wrote of one program."""

    lease: int | None = None
    peak: int | None = None
    waited: float = 0.0
    ran: float = 0.0
    startup: float | None = None
    how: str = ""
    attempts: int = 1
    cause: str = "lost"


class Landlord:
    """Sublet, in a home of its own with a device of its own."""

    def __init__(self, home: Path, device: Device, environ: dict[str, str], mark: Mark) -> None:
        self.home = Home(home)
        self.device = device
        self.mark = mark
        self.environ = {**environ, "SUBLET_HOME": str(home), "SUBLET_CONFIG": os.devnull}
        self.most_charged = 0
        self.latest: Snapshot | None = None
        """The status that goes with the latest sample of memory."""

    def run(
        self, folder: Path, look: Callable[[Moment, Snapshot | None], None]
    ) -> tuple[Race, dict[str, Report]]:
        """All programs, from no broker and no nursery to the last exit."""

        def owners() -> dict[int, str]:
            self.latest = self.status()
            rows = () if self.latest is None else self.latest.leases
            return {row.pid: row.name for row in rows if row.pid}

        def watch(moment: Moment) -> None:
            if self.latest is not None:
                self.most_charged = max(self.most_charged, charged(self.latest, self.device.id))
            look(moment, self.latest)

        entries = [self._entry(program, folder) for program in PROGRAMS]
        result = race.run(entries, self.device, self.mark, folder, watch, len(entries), owners)
        return result, {program.name: _report(program, folder) for program in PROGRAMS}

    def status(self) -> Snapshot | None:
        """What the broker knows; None if it is not there (yet, or any more)."""
        connection = connect(self.home)
        if connection is None:
            return None
        try:
            connection.send(AskStatus())
            reply = connection.receive()
        except OSError:
            return None
        finally:
            connection.close()
        return reply if isinstance(reply, Snapshot) else None

    def close(self) -> None:
        """End the broker, its nursery and whatever runs under it."""
        command = [sys.executable, "-m", "sublet", "down", "--stop"]
        subprocess.run(
            command,
            env=self.mark.on(self.environ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_LONGEST_END,
            check=False,
            start_new_session=True,
        )

    def _entry(self, program: Program, folder: Path) -> Entry:
        options = {
            "--memory": program.asked(self.device.id),
            "--on-oom": program.on_oom,
            "--device": self.device.id,
            "--python": sys.executable,
            "--name": program.name,
            "--report": str(_report_path(program, folder)),
        }
        words = [word for option in options.items() for word in option]
        argv = (sys.executable, "-m", "sublet", "run", *words, str(program.path))
        return Entry(program.name, argv, self.environ)


def charged(snapshot: Snapshot, device: str) -> int:
    """What all leases on this device and the nursery are charged with there."""
    standing = sum(row.standing for row in snapshot.devices if row.device.id == device)
    return standing + sum(row.charge for row in snapshot.leases if row.device == device)


def _report(program: Program, folder: Path) -> Report:
    try:
        document = json.loads(_report_path(program, folder).read_bytes())
    except (OSError, ValueError):
        return Report()
    return Report(**{key: document[key] for key in Report.__dataclass_fields__ if key in document})


def _report_path(program: Program, folder: Path) -> Path:
    return folder / f"{program.name}.json"
