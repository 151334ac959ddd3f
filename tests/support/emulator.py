"""A real pseudo-terminal with an emulator behind it: what a person would see on the screen."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Callable
from types import TracebackType

import pyte

from support.sandbox import PATIENCE, SUBLET, Sandbox


class Emulator:
    """`sublet` on a terminal of this size; killed at the end of the block if it still runs."""

    def __init__(self, sandbox: Sandbox, *words: str, rows: int = 24, columns: int = 80) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        environ = sandbox.environ | {"TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES"):  # They would come before the size of the terminal.
            environ.pop(name, None)
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            # Before the program looks: so it never sees another size.
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.chdir(sandbox.work)
            os.execve(SUBLET[0], [*SUBLET, *words], environ)
        self._code: int | None = None

    def __enter__(self) -> "Emulator":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        os.close(self._master)

    @property
    def lines(self) -> list[str]:
        """The rows of the screen."""
        return [line.rstrip() for line in self._screen.display]

    def expect(self, *texts: str, gone: str | None = None) -> None:
        """Wait until all of these are on the screen at one time, and this one is not."""

        def is_so(lines: list[str]) -> bool:
            shown = "\n".join(lines)
            return all(text in shown for text in texts) and (gone is None or gone not in shown)

        self.until(is_so, f"{texts} appear")

    def until(self, condition: Callable[[list[str]], bool], what: str) -> None:
        """Wait until this is so of the rows of the screen. It is drawn piece by piece: what is so
        of one piece need not be so of another yet."""
        deadline = time.monotonic() + PATIENCE
        while not condition(self.lines):
            shown = "\n".join(self.lines)
            assert time.monotonic() < deadline, f"it did not come that {what}:\n{shown}"
            assert self._read() or self._code is None, f"it ended before {what}:\n{shown}"

    def type(self, keys: str) -> None:
        """Press these keys."""
        os.write(self._master, keys.encode())

    def wait(self) -> int:
        """Its exit code, as a shell shows it."""
        deadline = time.monotonic() + PATIENCE
        while self._code is None:
            self._read()
            assert time.monotonic() < deadline, "it does not end:\n" + "\n".join(self.lines)
        return 128 - self._code if self._code < 0 else self._code

    def unread(self) -> int:
        """Bytes that it has written and that were not read."""
        (size,) = struct.unpack("i", fcntl.ioctl(self._master, termios.FIONREAD, b"\0" * 4))
        return int(size)

    def has_ended(self) -> bool:
        """Whether it has ended; reads nothing of what it writes."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code is not None

    def _read(self) -> bool:
        """Take in what was written; False if there was nothing."""
        self.has_ended()
        if not select.select([self._master], [], [], 0.1)[0]:
            return False
        try:
            self._stream.feed(os.read(self._master, 65536))
        except OSError:  # Nobody has the terminal open any more.
            time.sleep(0.01)
            return False
        return True
