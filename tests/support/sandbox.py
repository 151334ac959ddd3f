"""A private SUBLET_HOME and everything that lives in it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SUBLET = [sys.executable, "-m", "sublet"]
PATIENCE = 120.0
"""Seconds after which something counts as never going to happen, on a machine under any load."""


class Sandbox:
    """A state directory and a working directory of a test's own.

    `close` ends all that was started in it, and fails if something does not end.
    """

    def __init__(self, home: Path, work: Path, **environ: str) -> None:
        self.home = home
        self.work = work
        self.device = "cpu"
        """The device on which its programs get their leases."""
        work.mkdir(exist_ok=True)
        # Ray and TensorFlow, where a test has loaded them into its own process, set some, too.
        foreign = ("SUBLET", "PYTHON", "PYTEST", "VIRTUAL_ENV", "RAY_", "TF_")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self.environ = {**clean, "SUBLET_HOME": str(home), "SUBLET_CONFIG": os.devnull}
        self.environ |= environ

    def with_work(self, work: Path) -> "Sandbox":
        """The same home with another working directory."""
        other = Sandbox(self.home, work)
        other.environ, other.device = dict(self.environ), self.device
        return other

    def write(self, name: str, text: str) -> Path:
        """A file in the working directory."""
        path = self.work / name
        path.write_text(text)
        return path

    def sublet(self, *words: str, **options: Any) -> Any:
        """Run the command to its end."""
        return self.python("-m", "sublet", *words, **options)

    def python(self, *words: str | Path, check: bool = False, **options: Any) -> Any:
        """Run a Python program to its end, under no lease."""
        settings: dict[str, Any] = {"cwd": self.work, "env": self.environ, "timeout": PATIENCE}
        settings |= {"text": True, "capture_output": "stdout" not in options} | options
        return subprocess.run([sys.executable, *words], check=check, **settings)

    def start(self, *words: str, **options: Any) -> "subprocess.Popen[str]":
        """Start the command and go on."""
        settings: dict[str, Any] = {
            "cwd": self.work,
            "env": self.environ,
            "text": True,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        } | options
        return subprocess.Popen([*SUBLET, *words], **settings)

    def status(self) -> dict[str, Any]:
        """The document of `sublet status --json`."""
        answer = self.sublet("status", "--json", check=True)
        return json.loads(answer.stdout)  # type: ignore[no-any-return]

    def device_row(self) -> dict[str, Any]:
        """What `sublet status --json` says of the device."""
        (row,) = [one for one in self.status()["devices"] if one["device"]["id"] == self.device]
        return row  # type: ignore[no-any-return]

    def warm(self) -> None:
        """Have a warm nursery before the test begins."""
        self.write("nothing.py", "")
        self.sublet("run", "-q", "nothing.py", check=True)

    def processes(self) -> dict[int, str]:
        """All living processes that were started in this home."""
        mark = f"SUBLET_HOME={self.home}".encode() + b"\0"
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                # As bytes: anybody's process may have any name.
                state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
                if state not in b"ZX" and mark in (entry / "environ").read_bytes():
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(entry.name)] = words.decode(errors="replace")[:200]
            except OSError:
                continue
        return found

    def close(self) -> None:
        """End everything; fails if something stays."""
        try:
            self.sublet("down", "--stop")
            wait_for(lambda: not self.processes(), "the sandbox is empty")
        finally:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def wait_for(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """The condition's first true value; fails after a while, saying what did not come."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"in {seconds:.0f} s it did not happen that {what}")
        time.sleep(0.02)
    return value
