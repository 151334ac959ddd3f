"""What Sublet costs when nothing runs, and how soon its small commands answer."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from bench import figures, processes
from bench.report import Bar, Result, Table
from bench.sandbox import Sandbox, sandbox

_MB = 1e6
_COMMANDS = ("--help", "status")


@dataclass(frozen=True)
class AtRest:
    """What one process uses while nothing runs."""

    rss: int
    pss: int
    cpu: float
    """Processor seconds used."""
    over: float
    """The seconds for which it was watched."""

    @property
    def share(self) -> float:
        """The share of one core that it used."""
        return self.cpu / self.over


def measure(quick: bool) -> Result:
    """With the nursery warm: the commands one after another, then silence."""
    with sandbox() as home:
        home.warm_up()
        walls = {
            command: [_wall(home, command) for _ in range(5 if quick else 21)]
            for command in _COMMANDS
        }
        status = home.status()
        pids = {"broker": status["pid"], "nursery": status["nurseries"][0]["pid"]}
        resting = _watch(pids, 3.0 if quick else 20.0)
    return result(walls, resting)


def result(walls: Mapping[str, Sequence[float]], resting: Mapping[str, AtRest]) -> Result:
    """The tables and the bars for these figures."""
    commands = Table(
        "small commands, wall time",
        ("command", "runs", "least", "median", "most"),
        tuple(
            (
                f"sublet {command}",
                str(len(values)),
                *(figures.seconds(f(values)) for f in (min, figures.median, max)),
            )
            for command, values in walls.items()
        ),
    )
    rest = Table(
        "at rest",
        ("process", "RSS MB", "PSS MB", "CPU time", "over", "of a core"),
        tuple(
            (
                name,
                f"{use.rss / _MB:.1f}",
                f"{use.pss / _MB:.1f}",
                f"{use.cpu * 1000:.2f} ms",
                f"{use.over:.0f} s",
                f"{use.share * 100:.3f} %",
            )
            for name, use in resting.items()
        ),
        ("MB are 10⁶ bytes. PSS counts pages that other processes share by their share.",),
    )
    bars = [
        *(
            Bar(f"sublet {command}", figures.median(values) * 1000, 150, "at most", "ms")
            for command, values in walls.items()
        ),
        Bar("broker at rest, RSS", resting["broker"].rss / _MB, 40, "at most", "MB"),
        *(
            Bar(f"{name} at rest, of a core", use.share * 100, 0.1, "at most", "%")
            for name, use in resting.items()
        ),
    ]
    samples = {
        "walls": {name: list(values) for name, values in walls.items()},
        "resting": {name: asdict(use) for name, use in resting.items()},
    }
    return Result("rest", (commands, rest), tuple(bars), samples)


def _wall(home: Sandbox, command: str) -> float:
    began = time.perf_counter()
    home.sublet(command, timeout=30)
    return time.perf_counter() - began


def _watch(pids: Mapping[str, int], seconds: float) -> dict[str, AtRest]:
    time.sleep(1)  # What follows the last command is not rest yet.
    began = time.monotonic()
    before = {name: processes.cpu_seconds(pid) for name, pid in pids.items()}
    time.sleep(seconds)
    after = {name: processes.cpu_seconds(pid) for name, pid in pids.items()}
    over = time.monotonic() - began
    return {
        name: AtRest(processes.rss(pid), processes.pss(pid), after[name] - before[name], over)
        for name, pid in pids.items()
    }
