"""What `sublet doctor` looks at: a file, a job, or this machine with its broker."""

import contextlib
import os

from sublet.client.connection import connect
from sublet.client.jobs import Job
from sublet.client.logs import JobLogs
from sublet.doctor.finding import Finding, in_order
from sublet.doctor.gathering import this_machine
from sublet.doctor.reading import check_log, check_machine, check_script, found_in
from sublet.errors import BadRequest, SubletError
from sublet.home import Home
from sublet.wire.messages import AskStatus, Snapshot
from sublet.wire.rows import JobRow

_SCRIPTS = (".py", ".ipynb")
_LARGEST_SCRIPT = 8 << 20
_TAIL = 16 << 20
"""So many bytes of a log are read, from its end."""
_PIECE = 1 << 20
_LINES = 20_000
"""So many lines of a job's log are read, from its end."""


def of_machine() -> list[Finding]:
    """The environment, and the broker if one runs."""
    return in_order([*check_machine(this_machine()), *_of_broker()])


def of_file(path: str) -> list[Finding]:
    """A script or a notebook with the environment; any other text is a log."""
    data, before = _read(path)
    if path.endswith(_SCRIPTS) or _names_python(data):
        machine = this_machine()
        text = data.decode("utf-8-sig", errors="replace")
        return in_order([*check_script(path, text, machine), *check_machine(machine)])
    return of_log(path, data, before)


def of_log(name: str, data: bytes, before: int = 0) -> list[Finding]:
    """What a program has written, after so many lines that were left out."""
    if b"\0" in data[:4096]:
        raise BadRequest(
            f"{name} is no text.", "Name a Python script, a notebook, a log, or a job's number."
        )
    return check_log(name, data.decode("utf-8", errors="replace"), before)


def of_job(number: int) -> list[Finding]:
    """The verdict on a job, what its log says, and what is wrong with its script."""
    row = Job(number).status()
    verdict = found_in("job", row)
    error = f"\n{row.error.text}\n" if row.error is not None else ""
    said = [one for one in check_log(f"log of #{number}", _log(number, row) + error) if one.counts]
    if row.cause in ("lease exceeded", "device full"):
        said = [one for one in said if not one.rule.startswith("out-of-")]
    shown = _of_script(row.script)
    known = {one.rule for one in shown}
    return in_order([*verdict, *(one for one in said if one.rule not in known), *shown])


def _of_script(path: str) -> list[Finding]:
    """What is wrong with the script of a job, if it is still there."""
    if not path or not os.path.isfile(path):
        return []
    with contextlib.suppress(BadRequest):
        source = _read(path)[0].decode("utf-8-sig", errors="replace")
        return check_script(path, source, this_machine())
    return []


def _log(number: int, row: JobRow) -> str:
    """The end of what a job has written; empty for one that ran in the foreground."""
    logs = JobLogs(Home.find().logs, number, lambda: row)
    pieces: list[bytes] = []
    with contextlib.suppress(BadRequest, OSError):
        for output in logs.read(tail=_LINES):
            if isinstance(output.piece, bytes):
                pieces.append(output.piece)
    return b"".join(pieces).decode("utf-8", errors="replace")


def _of_broker() -> list[Finding]:
    """What the broker knows of its devices and jobs; nothing if none runs."""
    try:
        connection = connect(Home.find())
        if connection is None:
            return []
        with contextlib.closing(connection):
            connection.send(AskStatus())
            snapshot = connection.receive()
    except (OSError, SubletError) as error:
        sentence = f"The broker does not answer: {error}"
        return [Finding("broker-silent", "error", sentence, "sublet down")]
    return found_in("broker", snapshot) if isinstance(snapshot, Snapshot) else []


def _read(path: str) -> tuple[bytes, int]:
    """The text of a file, of a long log its end, and how many lines come before that."""
    before = 0
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if path.endswith(_SCRIPTS) and size > _LARGEST_SCRIPT:
                raise BadRequest(f"{path} is too large for a program.", "Name the script itself.")
            if size > _TAIL and not path.endswith(_SCRIPTS):
                for _ in range((size - _TAIL) // _PIECE + 1):
                    before += file.read(_PIECE).count(b"\n")
            data = file.read()
    except OSError as error:
        hint = "Name a script or a log." if os.path.isdir(path) else "Check its permissions."
        raise BadRequest(f"{path} cannot be read: {error.strerror}.", hint) from error
    if b"\0" in data[:4096]:
        raise BadRequest(
            f"{path} is no text.", "Name a Python script, a notebook, a log, or a job's number."
        )
    return data, before


def _names_python(data: bytes) -> bool:
    first = data.split(b"\n", 1)[0]
    return first.startswith(b"#!") and b"python" in first
