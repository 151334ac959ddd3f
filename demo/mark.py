"""The mark that everything the demo starts carries in its environment.

Owns finding those processes, adding up their memory and ending them. Reads /proc only: what it
says of Sublet, it does not know from Sublet.
"""

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Iterator

_VARIABLE = "DEMO_MARK"
_GRACE = 5.0


class Mark:
    """Inherited by every child, however far away its parent is by then."""

    def __init__(self) -> None:
        self.word = secrets.token_hex(8)
        self._needle = f"{_VARIABLE}={self.word}".encode()

    def on(self, environ: dict[str, str]) -> dict[str, str]:
        """This environment, with the mark."""
        return {**environ, _VARIABLE: self.word}

    def pids(self) -> set[int]:
        """Who carries the mark, and all below them: Sublet gives a nursery a clean environment.

        The dead whom nobody has waited for have no environment left.
        """
        parents = {int(name): _parent(name) for name in os.listdir("/proc") if name.isdigit()}
        marked = {pid for pid in parents if self._is_on(pid)}
        return {pid for pid in parents if not marked.isdisjoint(_line(pid, parents))}

    def end(self) -> None:
        """End whoever is left; returns when nobody is."""
        deadline = time.monotonic() + _GRACE
        while pids := self.pids():
            late = time.monotonic() > deadline
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
            time.sleep(0.1)

    def _is_on(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                return self._needle in file.read().split(b"\0")
        except OSError:
            return False


def by_owner(held: dict[int, int], owners: dict[int, str]) -> dict[str, int]:
    """What processes hold, by whose they are: an owner's, or one of its descendants'. What is
    nobody's is under ""."""
    sums: dict[str, int] = {}
    parents = {pid: _parent(pid) for pid in held}
    for pid, amount in held.items():
        name = next((owners[one] for one in _line(pid, parents) if one in owners), "")
        sums[name] = sums.get(name, 0) + amount
    return sums


def available() -> int:
    """What the machine could still give."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvail"))


def pss(pid: int) -> int:
    """What a process holds of the machine's memory. Shared pages count once, divided among those
    who share them."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii", errors="replace") as lines:
            return next((int(line.split()[1]) << 10 for line in lines if line[:4] == "Pss:"), 0)
    except OSError:
        return 0


def _line(pid: int, parents: dict[int, int]) -> Iterator[int]:
    """A process, its parent, and so on."""
    while pid > 1:
        yield pid
        pid = parents.get(pid, 0)


def _parent(pid: int | str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the program, in parentheses, may hold spaces.
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0
