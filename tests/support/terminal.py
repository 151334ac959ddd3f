"""A real pseudo-terminal with a command in it, as a person would have."""

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Sequence
from pathlib import Path

from support.sandbox import PATIENCE, SUBLET, Sandbox


class Terminal:
    """A command as session leader on a terminal of its own: `sublet`, unless it is said."""

    def __init__(
        self,
        sandbox: Sandbox,
        *words: str,
        cwd: Path | None = None,
        command: Sequence[str] = SUBLET,
    ) -> None:
        self.screen = ""
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(cwd or sandbox.work)
            os.execve(command[0], [*command, *words], sandbox.environ)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def expect(self, text: str, seconds: float = PATIENCE) -> str:
        """Read until this text has been on the screen."""
        deadline = time.monotonic() + seconds
        while text not in self.screen:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} did not appear; the screen: {self.screen!r}"
            if not self._read(left):
                assert text in self.screen, f"{text!r} never came; the screen: {self.screen!r}"
        return self.screen

    def look(self) -> str:
        """What has been on the screen until now."""
        self._read(0.02)
        return self.screen

    def type(self, text: str) -> None:
        """Type these keys."""
        os.write(self.master, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the window."""
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)

    def hang_up(self) -> None:
        """Close the terminal, as closing its window does."""
        os.close(self.master)

    def kill(self) -> None:
        """`kill -9` the command."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit code as a shell shows it, once all that it wrote is on the screen."""
        deadline = time.monotonic() + seconds
        code: int | None = None
        while True:
            # In this order: what was written before the end is read after it.
            if code is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                code = os.waitstatus_to_exitcode(status) if pid else None
            if not self._read(0.05) and code is not None:
                return 128 - code if code < 0 else code
            assert time.monotonic() < deadline, f"it does not end; the screen: {self.screen!r}"

    def _read(self, seconds: float) -> bool:
        try:
            if select.select([self.master], [], [], min(seconds, 0.2))[0]:
                data = os.read(self.master, 65536)
                self.screen += data.decode(errors="replace")
                return bool(data)
        except OSError:
            time.sleep(0.02)
            return False
        return True
