"""Install packages with pip, and show how far it is: `python -m demo.install '.[dev]'`.

Uses the standard library only, for there is nothing else yet. All that pip says goes to a log,
which is shown if it fails.
"""

import re
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import IO

_LOG = Path(sys.prefix) / "install.log"
_PIP = (sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-color")
_TURN = 0.5
_BETWEEN_LINES = 15.0
"""Seconds between two lines where they cannot be written over each other."""
_WIDTH = 78


class Progress:
    """What pip is doing now, read from its output."""

    def __init__(self) -> None:
        self.doing = "finding out what is needed"
        self._packages: set[str] = set()
        self._before = _installed()
        self._unpacking = 0

    def hear(self, line: str) -> None:
        """Take in one line of pip's."""
        words = line.split()
        if match := re.match(r"(?:Collecting|Requirement already satisfied:) ([\w.-]+)", line):
            self._packages.add(match[1].lower())
        if words[:1] in (["Downloading"], ["Using"]) and (match := re.search(r"([\w.]+)-\d", line)):
            size = re.search(r"\((.*?)\)", line)
            what = f"{match[1].rpartition('/')[2]}{f', {size[1]}' if size else ''}"
            verb = "downloading" if words[0] == "Downloading" else "found"
            self.doing = f"{len(self._packages)} packages so far; {verb} {what}"
        elif line.startswith("Installing collected packages:"):
            self._unpacking = line.count(",") + 1

    def __str__(self) -> str:
        if not self._unpacking:
            return self.doing
        done = min(self._unpacking, _installed() - self._before)
        return f"unpacking {self._unpacking} packages: {done} done"


def _installed() -> int:
    """How many packages there are."""
    return sum(1 for _ in Path(sysconfig.get_path("purelib")).glob("*.dist-info"))


def main(words: list[str]) -> int:
    """Run pip with these words; its exit code."""
    began = time.monotonic()
    progress = Progress()
    print(f"Installing into {sys.prefix}; the first time takes minutes.", flush=True)
    with _LOG.open("w") as log:
        pip = subprocess.Popen(
            [*_PIP, "--progress-bar", "off", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert pip.stdout is not None
        reader = threading.Thread(target=_read, args=(pip.stdout, log, progress))
        reader.start()
        _show(progress, reader, began)
    code = pip.wait()
    if code:
        sys.stderr.write(f"{_LOG.read_text()[-4000:]}\npip failed; all it said: {_LOG}\n")
    else:
        print(f"Installed in {time.monotonic() - began:.0f} s.")
    return code


def _read(output: IO[str], log: IO[str], progress: Progress) -> None:
    for line in output:
        log.write(line)
        progress.hear(line.strip())


def _show(progress: Progress, reader: threading.Thread, began: float) -> None:
    terminal = sys.stdout.isatty()
    last = began
    while reader.is_alive():
        reader.join(_TURN)
        now = time.monotonic()
        line = f"{now - began:4.0f} s  {progress}"[:_WIDTH]
        if terminal:
            print(f"\r{line:<{_WIDTH}}", end="", flush=True)
        elif now - last >= _BETWEEN_LINES:
            last = now
            print(line, flush=True)
    if terminal:
        print(f"\r{'':<{_WIDTH}}\r", end="", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # Which pip hears, too.
        sys.exit(130)
