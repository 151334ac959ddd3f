"""A program of the selftest under a lease, which answers and then waits until it is let go."""

import contextlib
import json
import os
import select
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import sublet.inside
from sublet.client.api import Quiet, Report, run
from sublet.errors import SubletError

PROGRAM = str(Path(sublet.inside.__file__).parent / "selftest" / "program.py")
PATIENCE = 90.0
"""Seconds in which a program has answered, or has ended."""


class Failed(Exception):
    """A program did not do what it was to do; the text says what happened instead."""


class Run(Quiet):
    """One run, in a thread of its own. A context: at its end the program is let go."""

    def __init__(
        self,
        *words: str,
        memory: str,
        device: str | None = None,
        gpus: int | None = None,
        fence: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        self.report: Report | None = None
        self._reason = ""
        self._error = ""
        self._until = time.monotonic() + patience
        self._line = b""
        theirs, self._stdin = os.pipe()
        self._stdout, out = os.pipe()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # Closed with the run.
        self._thread = threading.Thread(
            target=self._run,
            args=([PROGRAM, *words], memory, device, gpus, fence, theirs, out),
            daemon=True,
        )
        self._thread.start()

    def waits(self, reason: str) -> None:
        """It waits for memory, or for TensorFlow to be loaded."""
        self._reason = reason

    def answer(self) -> dict[str, Any]:
        """What the program says of itself."""
        while not self._line.endswith(b"\n"):
            left = self._until - time.monotonic()
            if left <= 0:
                raise Failed(
                    f"no answer; it waits: {self._reason}" if self._reason else "no answer"
                )
            if not select.select([self._stdout], [], [], left)[0]:
                continue
            data = os.read(self._stdout, 65536)
            if not data:
                raise Failed(self._why())
            self._line += data
        try:
            found: dict[str, Any] = json.loads(self._line.splitlines()[-1])
        except ValueError:
            raise Failed(f"it said {self._line[-200:].decode(errors='replace')!r}") from None
        return found

    def finish(self) -> Report:
        """Let the program go, and return how it went."""
        self.release()
        self._thread.join(max(0.0, self._until - time.monotonic()))
        if self.report is None:
            raise Failed(self._error or "the program did not end")
        return self.report

    def release(self) -> None:
        """Let the program go on to its end."""
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _run(
        self,
        words: list[str],
        memory: str,
        device: str | None,
        gpus: int | None,
        fence: bool,
        stdin: int,
        stdout: int,
    ) -> None:
        try:
            self.report = run(
                words,
                memory,
                device=device,
                gpus=gpus,
                fence=fence,
                stdin=stdin,
                stdout=stdout,
                stderr=self._stderr.fileno(),
                listener=self,
            )
        except SubletError as error:
            self._error = f"{error.message} {error.hint or ''}".strip()
        finally:
            os.close(stdin)
            os.close(stdout)

    def _why(self) -> str:
        """Why there was no answer, from what the program has left."""
        self._thread.join(max(0.0, self._until - time.monotonic()))
        if self._error:
            return self._error
        with contextlib.suppress(OSError):
            self._stderr.seek(0)
            lines = self._stderr.read().decode(errors="replace").split("\n")
            said = [line.strip() for line in lines if line.strip()]
            if said:
                return said[-1]
        return "the program ended without an answer"
