"""The mark that everything the demo starts carries in its environment.

Owns finding those processes, adding up their memory and ending them. Reads /proc only: what it
says of Sublet, it does not know from Sublet.
"""

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Iterable

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
        """Who carries the mark. The dead whom nobody has waited for have no environment left."""
        return {int(name) for name in os.listdir("/proc") if name.isdigit() and self._is_on(name)}

    def end(self) -> None:
        """End whoever is left; returns when nobody is."""
        deadline = time.monotonic() + _GRACE
        while pids := self.pids():
            late = time.monotonic() > deadline
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
            time.sleep(0.1)

    def _is_on(self, pid: str) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                return self._needle in file.read().split(b"\0")
        except OSError:
            return False


def memory(pids: Iterable[int]) -> int:
    """What these processes hold together: shared pages count once, shared out among them (PSS)."""
    return sum(map(_pss, pids))


def available() -> int:
    """What the machine could still give."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvail"))


def _pss(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii", errors="replace") as lines:
            return next((int(line.split()[1]) << 10 for line in lines if line[:4] == "Pss:"), 0)
    except OSError:
        return 0
