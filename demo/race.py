"""Many commands started at once, watched until the last has ended.

Owns their processes, their output and the clock. Never knows what they are: plain programs and
clients of Sublet are run by the same code and measured by the same rule.
"""

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from demo import mark as marks
from demo.mark import Mark

_TURN = 0.05
_BETWEEN_SAMPLES = 0.25
_COST_OF_SAMPLES = 0.2
"""Of the time, at most: adding up is work for the kernel, and the programs need the processors."""
_GRACE = 5.0
TOO_LONG = 150.0
"""Seconds after which whatever still runs has hung."""


@dataclass(frozen=True)
class Entry:
    """One command that takes part."""

    name: str
    argv: tuple[str, ...]
    environ: dict[str, str]


@dataclass(frozen=True)
class Finish:
    """How one command ended."""

    name: str
    code: int
    """Negative for a signal."""
    seconds: float
    result: str
    """The last line it printed."""
    errors: str
    """All that it wrote to stderr."""


@dataclass(frozen=True)
class Moment:
    """The state of the race at one moment."""

    seconds: float
    memory: int
    most: int
    started: dict[str, float]
    finished: dict[str, Finish]


@dataclass(frozen=True)
class Race:
    """The outcome of all commands."""

    finishes: tuple[Finish, ...]
    seconds: float
    most: int
    """The most that was held together: by the commands and by all that came of them."""
    at_once: int
    """How many ran at a time, at most."""

    @property
    def deaths(self) -> tuple[Finish, ...]:
        return tuple(finish for finish in self.finishes if finish.code != 0)


def run(
    entries: list[Entry],
    mark: Mark,
    folder: Path,
    look: Callable[[Moment], None],
    at_once: int,
) -> Race:
    """Run them all. When it is interrupted its commands end with it; what they started may not."""
    began = time.monotonic()
    queue = list(entries)
    running: dict[str, subprocess.Popen[bytes]] = {}
    started: dict[str, float] = {}
    finished: dict[str, Finish] = {}
    now = most = 0
    next_sample = 0.0
    try:
        while queue or running:
            elapsed = time.monotonic() - began
            while queue and len(running) < at_once:
                entry = queue.pop(0)
                running[entry.name] = _start(entry, mark, folder)
                started[entry.name] = elapsed
            for name, process in list(running.items()):
                if elapsed > TOO_LONG and process.poll() is None:
                    process.kill()
                    process.wait()
                if process.poll() is not None:
                    del running[name]
                    finished[name] = _finish(name, process, elapsed - started[name], folder)
            if elapsed >= next_sample:
                now = marks.memory(mark.pids())
                cost = time.monotonic() - began - elapsed
                next_sample = elapsed + max(_BETWEEN_SAMPLES, cost / _COST_OF_SAMPLES)
                most = max(most, now)
                look(Moment(elapsed, now, most, dict(started), dict(finished)))
            time.sleep(_TURN)
    finally:
        _end(list(running.values()))
    seconds = time.monotonic() - began
    look(Moment(seconds, now, most, dict(started), dict(finished)))
    order = tuple(finished[entry.name] for entry in entries)
    return Race(order, seconds, most, at_once)


def _start(entry: Entry, mark: Mark, folder: Path) -> "subprocess.Popen[bytes]":
    with (
        open(folder / f"{entry.name}.out", "wb") as out,
        open(folder / f"{entry.name}.err", "wb") as err,
    ):
        return subprocess.Popen(
            entry.argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=mark.on(entry.environ),
            # Ctrl-C is for the demo, which ends them all.
            start_new_session=True,
        )


def _end(processes: "list[subprocess.Popen[bytes]]") -> None:
    """Those that wait or run are asked first, so that a client can tell its broker."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _GRACE
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _finish(name: str, process: "subprocess.Popen[bytes]", seconds: float, folder: Path) -> Finish:
    lines = (folder / f"{name}.out").read_text(errors="replace").split("\n")
    result = next((line.strip() for line in reversed(lines) if line.strip()), "")
    errors = (folder / f"{name}.err").read_text(errors="replace")
    return Finish(name, process.returncode, seconds, result, errors)
