"""What the programs of the load write down, in a file outside the home that is only added to.

A line is one write, so no two lines mix, and what was written stays whoever is killed next.
"""

import fcntl
import json
import os
import time
from typing import Any

_held: list[int] = []


def write(kind: str, name: str, **facts: Any) -> None:
    """One line. Times are monotonic: the load may see the wall clock jump."""
    line = {"kind": kind, "name": name, "pid": os.getpid(), "at": time.monotonic(), **facts}
    file = os.open(os.environ["CHAOS_HISTORY"], os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    os.write(file, json.dumps(line).encode() + b"\n")
    os.close(file)


def begin(name: str, lease: dict[str, Any] | None = None) -> None:
    """An attempt begins. The kernel holds a lock for it until its last process is gone."""
    lease = lease or json.loads(os.environ.get("SUBLET_LEASE", "{}"))
    lock = os.path.join(os.environ["CHAOS_LOCKS"], name.replace("/", "_"))
    # Children do not inherit it: what a program leaves behind is looked for in other ways.
    file = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        write("overlap", name, job=lease.get("job"), attempt=lease.get("attempt"))
    _held.append(file)
    write("start", name, job=lease.get("job"), attempt=lease.get("attempt"))


def end(name: str, code: int = 0) -> None:
    """The attempt has done all it was to do, and exits with this code next."""
    lease = json.loads(os.environ.get("SUBLET_LEASE", "{}"))
    write("end", name, code=code, job=lease.get("job"), attempt=lease.get("attempt"))
