"""How workers ended, read from the records that keepers and workers leave. Trusts none of them."""

from sublet.backends.backend import Ending
from sublet.formats import attempt_files
from sublet.formats.usage_file import read_exit_code


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


def own_status(directory: str, pid: int) -> int | None:
    """The exit status that a process wrote down itself, as waitpid would return it; None if it
    wrote none, as one that was killed has not.

    For a process whose parent, the only one that can wait for it, is gone.
    """
    code = read_exit_code(directory, pid)
    return None if code is None else code << 8


def how_started(directory: str) -> str:
    """How a worker has started by its own record: one that was forked warm may have become a fresh
    interpreter. Empty if it left no record."""
    record = attempt_files.read(directory, attempt_files.FRESH)
    return f"cold: {record['why']}" if record and isinstance(record.get("why"), str) else ""
