"""Many commands started at once, watched until the last has ended.

Owns their processes, their output and the clock. Never knows what they are: plain programs and
clients of Sublet are run by the same code and measured by the same rule.
"""

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from demo.devices import Device
from demo.mark import Mark, by_owner

_TURN = 0.05
_BETWEEN_SAMPLES = 0.25
_COST_OF_SAMPLES = 0.2
"""Of a processor, at most: adding up is work for the kernel, and the programs need them."""
_GRACE = 5.0


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
    ended: float
    """Seconds after the race began."""
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
class Sample:
    """The memory that was held at one moment, by the name of the command; "" is nobody's."""

    seconds: float
    held: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.held.values())


@dataclass(frozen=True)
class Race:
    """The outcome of all commands."""

    finishes: tuple[Finish, ...]
    seconds: float
    most: int
    """The most that was held together: by the commands and by all that came of them."""
    at_once: int
    """How many ran at a time, at most."""
    samples: tuple[Sample, ...] = ()

    @property
    def deaths(self) -> tuple[Finish, ...]:
        return tuple(finish for finish in self.finishes if finish.code != 0)

    def without(self, names: set[str]) -> "Race":
        """The same without the finishes of these commands."""
        kept = tuple(finish for finish in self.finishes if finish.name not in names)
        return replace(self, finishes=kept)

    def heights(self, count: int, seconds: float) -> list[dict[str, int]]:
        """The memory by name in `count` equal parts of `seconds`, each at its fullest moment.

        A part without a sample is like the one before it; after the end nothing is held.
        """
        fullest: dict[int, Sample] = {}
        for sample in self.samples:
            part = min(count - 1, int(sample.seconds / seconds * count))
            if part not in fullest or sample.total > fullest[part].total:
                fullest[part] = sample
        held: list[dict[str, int]] = []
        for part in range(count):
            before = held[-1] if held and part / count * seconds < self.seconds else {}
            held.append(fullest[part].held if part in fullest else before)
        return held


def run(
    entries: list[Entry],
    device: Device,
    mark: Mark,
    folder: Path,
    look: Callable[[Moment], None],
    at_once: int,
    owners: Callable[[], dict[int, str]] | None = None,
) -> Race:
    """Run them all. When it is interrupted its commands end with it; what they started may not.

    `owners` names the processes whose memory is whose; default: the commands' own.
    """
    began = time.monotonic()
    queue = list(entries)
    running: dict[str, subprocess.Popen[bytes]] = {}
    started: dict[str, float] = {}
    finished: dict[str, Finish] = {}
    samples: list[Sample] = []
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
                if elapsed > device.patience and process.poll() is None:
                    process.kill()
                    process.wait()
                if process.poll() is not None:
                    del running[name]
                    finished[name] = _finish(name, process, started[name], elapsed, folder)
            if elapsed >= next_sample:
                spent = time.process_time()
                whose = owners() if owners else {one.pid: name for name, one in running.items()}
                samples.append(Sample(elapsed, by_owner(device.held(mark.pids()), whose)))
                now = samples[-1].total
                cost = time.process_time() - spent
                next_sample = elapsed + max(_BETWEEN_SAMPLES, cost / _COST_OF_SAMPLES)
                most = max(most, now)
                look(Moment(elapsed, now, most, dict(started), dict(finished)))
            time.sleep(_TURN)
    finally:
        _end(list(running.values()))
    seconds = time.monotonic() - began
    look(Moment(seconds, now, most, dict(started), dict(finished)))
    order = tuple(finished[entry.name] for entry in entries)
    return Race(order, seconds, most, at_once, tuple(samples))


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


def _finish(
    name: str, process: "subprocess.Popen[bytes]", started: float, ended: float, folder: Path
) -> Finish:
    lines = (folder / f"{name}.out").read_text(errors="replace").split("\n")
    result = next((line.strip() for line in reversed(lines) if line.strip()), "")
    errors = (folder / f"{name}.err").read_text(errors="replace")
    return Finish(name, process.returncode, ended - started, ended, result, errors)
