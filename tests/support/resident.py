"""A Python process that does what it is told, one cell after the other, as a notebook's does.

test ──one JSON line per cell──▶ resident
     ◀──one JSON line: what it printed, or the error──
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.sandbox import Sandbox

_LOOP = """
import contextlib, io, json, os, sys, traceback
answers = os.fdopen(os.dup(1), "w")
names = {}
for line in sys.stdin:
    said, error = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(said):
            exec(compile(json.loads(line), "<cell>", "exec"), names)
    except KeyboardInterrupt:
        error = "KeyboardInterrupt"
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    print(json.dumps({"said": said.getvalue(), "error": error}), file=answers, flush=True)
"""


class Resident:
    """One such process. Ends when its input does."""

    def __init__(self, sandbox: Sandbox, *arguments: str, **environ: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _LOOP, *arguments],
            cwd=sandbox.work,
            env={"TF_CPP_MIN_LOG_LEVEL": "3", **sandbox.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def begin(self, cell: str) -> None:
        """Hand it a cell and go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(cell) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """What came of the cell: `said` and `error`."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it has ended: {self.process.stderr and self.process.stderr.read()}"
        return json.loads(line)  # type: ignore[no-any-return]

    def do(self, cell: str) -> str:
        """What the cell prints; it must not fail."""
        self.begin(cell)
        answer = self.answer()
        assert answer["error"] is None, answer
        return str(answer["said"]).strip()

    def fails(self, cell: str) -> str:
        """The error that the cell ends with."""
        self.begin(cell)
        answer = self.answer()
        assert answer["error"] is not None, answer
        return str(answer["error"])

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """kill -9, and collect it."""
        self.process.kill()
        self.end()

    def end(self) -> str:
        """Let it come to its end; what it wrote to stderr."""
        _, said = self.process.communicate(timeout=60)
        return said


@contextmanager
def residents(sandbox: Sandbox) -> Iterator[Any]:
    """Make some; all of them are gone at the dedent."""
    made: list[Resident] = []

    def make(*arguments: str, **environ: str) -> Resident:
        made.append(Resident(sandbox, *arguments, **environ))
        return made[-1]

    try:
        yield make
    finally:
        for one in made:
            if one.process.poll() is None:
                one.process.kill()
            one.process.communicate()
