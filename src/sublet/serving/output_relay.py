"""What an engine writes, passed on to the server's stderr as text.

TensorFlow quotes in its log what clients have sent. So each line is made plain and is marked as an
engine's, and there are only so many: a client can neither reach the terminal or forge a line of the
server's, nor fill a disk.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable

from sublet.text import plain

_BURST = 1000  # Lines that may come at once.
_RATE = 20.0  # Lines in a second, in the long run.
_LONGEST = 4000
"""Bytes of a line; what is longer is said in several."""
_ENDING = 1.0
"""Seconds for the last words of an engine that has ended."""


def _print(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # Nobody reads it any more.
        print(f"engine: {line}", file=sys.stderr, flush=True)


class OutputRelay:
    """Relays what one engine writes to `writing`; ends when all copies of that are closed."""

    def __init__(self, say: Callable[[str], None] = _print) -> None:
        reading, self.writing = os.pipe()
        self._say = say
        self._allowance, self._since = float(_BURST), time.monotonic()
        self._left_out = 0
        self._thread = threading.Thread(target=self._run, args=(reading,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Relay the last words of an engine that has ended."""
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1
        self._thread.join(_ENDING)

    def _run(self, reading: int) -> None:
        held = b""
        with open(reading, "rb", buffering=0) as file:
            while data := file.read(1 << 16):
                *lines, held = (held + data).split(b"\n")
                for line in lines:
                    self._hear(line)
                while len(held) > _LONGEST:
                    self._hear(held[:_LONGEST])
                    held = held[_LONGEST:]
        if held:
            self._hear(held)

    def _hear(self, line: bytes) -> None:
        now = time.monotonic()
        self._allowance = min(float(_BURST), self._allowance + (now - self._since) * _RATE)
        self._since = now
        if self._allowance < 1:
            self._left_out += 1
            return
        if self._left_out:
            self._say(f"… {self._left_out} lines left out …")
            self._left_out = 0
        self._allowance -= 1
        for start in range(0, len(line) or 1, _LONGEST):
            text = line[start : start + _LONGEST].decode(errors="replace")
            self._say(plain(text.expandtabs()))
