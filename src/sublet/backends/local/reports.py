"""What the broker hears of its workers and lodgers. It decides nothing."""

from typing import Protocol

from msgspec import Struct

from sublet.domain.job import Process
from sublet.formats import attempt_files
from sublet.formats.usage_file import read_exit_code


class Ending(Struct, frozen=True):
    """How a worker ended, as far as anybody saw."""

    status: int | None
    """As waitpid says it; None if nobody could see it."""
    stopped: str = ""
    system_peak: int | None = None
    ran: float | None = None
    note: str = ""
    """What more is known of it."""
    left: tuple[str, ...] = ()
    """Processes that the program left behind, and that were ended."""
    rebooted: bool = False
    """Whether it ended with the machine."""


def read_ending(record: attempt_files.Record | None) -> Ending | None:
    """An exit record, or what a keeper says of an end; None if it is not as a keeper makes it."""
    if record is None or "status" not in record:
        return None
    status, ran, peak = record["status"], record.get("ran"), record.get("system_peak")
    stopped, note, left = (record.get(name) for name in ("stopped", "note", "left"))
    if status is not None and not attempt_files.is_status(status):
        return None
    return Ending(
        status,
        stopped if isinstance(stopped, str) else "",
        peak if type(peak) is int and peak > 0 else None,
        ran if attempt_files.is_number(ran, 0, 1e12) else None,
        note if isinstance(note, str) else "",
        tuple(one for one in left if isinstance(one, str)) if isinstance(left, list) else (),
    )


class Reports(Protocol):
    """Told by the launcher and the lodgers; `run` names an attempt."""

    def started(self, attempt_id: str, keeper: Process, worker: Process, how: str) -> None:
        """The worker exists, and its program runs now."""

    def sampled(self, attempt_id: str, now: int, peak: int, pids: list[int], busy: float) -> None:
        """What its tree adds to the machine, and how many processors it has kept busy."""

    def ended(self, attempt_id: str, ending: Ending) -> None:
        """The last process of the tree was seen to end."""

    def never_ran(self, attempt_id: str, why: str) -> None:
        """The attempt is over, and no line of the program has run."""

    def nurseries_changed(self) -> None:
        """One is warm now, or is not any more."""


def own_status(directory: str, pid: int) -> int | None:
    """How a process has ended by its own word, as waitpid would say it; None if it left none.

    For where its parent, the only one who is told, is not here. Who is killed leaves no word.
    """
    code = read_exit_code(directory, pid)
    return None if code is None else code << 8


def how_started(directory: str) -> str:
    """How a worker has started by its own word: one that was forked warm may have become a fresh
    interpreter. Empty if it left none."""
    record = attempt_files.read(directory, attempt_files.FRESH)
    return f"cold: {record['why']}" if record and isinstance(record.get("why"), str) else ""
