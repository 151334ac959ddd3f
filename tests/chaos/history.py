"""What happened, as those it happened to have written it down."""

import json
from pathlib import Path
from typing import Any, NamedTuple


class Event(NamedTuple):
    """A line that a program of the load has written; `programs/note.py` says how."""

    kind: str
    name: str
    pid: int
    at: float
    facts: dict[str, Any]

    @property
    def attempt(self) -> tuple[int, int]:
        """The job's number and the attempt's; zeros under no lease."""
        return int(self.facts.get("job") or 0), int(self.facts.get("attempt") or 0)


class Asked(NamedTuple):
    """Something that the load has asked for, and what it was told."""

    kind: str
    name: str
    expected: int
    """The exit code that the program has when nobody harms it."""
    pid: int
    """The pid of the command."""
    code: int
    """The command's own exit code; negative for a signal."""
    said: str
    began: float
    ended: float
    jobs: tuple[int, ...] = ()
    """The jobs that were accepted."""
    after_ok: tuple[int, ...] = ()
    at_once: int = 0


class Fault(NamedTuple):
    """Something that was done to a process, or to the world."""

    how: str
    """kill, stop, continue, full disk, clock."""
    kind: str
    """What the process was; empty for the world."""
    pid: int
    at: float
    until: float
    """When the harm was over; the same for what lasts."""


class Holder(NamedTuple):
    """The holder of one lease in a sample."""

    job: int
    charge: int
    ceiling: int
    device: str
    within: int | None


class Sample(NamedTuple):
    """Who held what at one moment, and what there was."""

    source: str
    """The ledger, or `sublet status`."""
    capacity: dict[str, int]
    holders: tuple[Holder, ...]


def read(path: Path) -> list[Event]:
    """All lines, in the order in which they were written."""
    found = []
    for line in path.read_text().splitlines():
        facts = json.loads(line)
        found.append(
            Event(facts.pop("kind"), facts.pop("name"), facts.pop("pid"), facts.pop("at"), facts)
        )
    return found
