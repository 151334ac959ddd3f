"""What one more worker costs that has fitted a model and idles: memory by proportional share."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from bench import figures, processes, ways
from bench.report import Bar, Result, Table
from bench.sandbox import PROGRAMS, ROOT, SUBLET, Sandbox, sandbox

_MiB = 2**20
_PROGRAM = PROGRAMS / "short_job.py"
_CEILING = "256MiB"


@dataclass(frozen=True)
class Weights:
    """Bytes (PSS) of all processes of one way, before and after its workers came."""

    workers: int
    before: int
    after: int
    clients: int = 0
    """What waits in the terminal for each worker; not part of `after`."""

    @property
    def each(self) -> float:
        """What one more worker adds, its share of keepers and of pages no longer shared too."""
        return (self.after - self.before) / self.workers


def measure(quick: bool) -> Result:
    """Plain processes, forks of a bare preloaded process, and ours."""
    count = 2 if quick else 6
    weights: dict[str, Weights] = {}
    failures = []
    ways_: dict[str, Callable[[Sandbox, int], Weights]] = {
        "python job.py": _plain,
        "limit: bare fork, preloaded": _forked,
        "sublet run job.py": _leased,
    }
    for title, weigh in ways_.items():
        try:
            with sandbox() as home:
                weights[title] = weigh(home, count)
        except processes.Failed as trouble:
            failures.append(f"{title}: {trouble}")
    return result(weights, tuple(failures))


def result(weights: dict[str, Weights], failures: tuple[str, ...] = ()) -> Result:
    """The table and the bar for these weights."""
    plain, ours = weights.get("python job.py"), weights.get("sublet run job.py")
    rows = []
    for title, weight in weights.items():
        rows.append(
            (
                title,
                str(weight.workers),
                *(f"{n / _MiB:.0f}" for n in (weight.before, weight.after, weight.each)),
                figures.significant(weight.each / plain.each) if plain else "–",
            )
        )
        if weight.clients:
            each = weight.clients / weight.workers
            share = figures.significant(each / plain.each) if plain else "–"
            rows.append(
                ("  and its client in the terminal", "", "", "", f"{each / _MiB:.0f}", share)
            )
    table = Table(
        "idle after a fit: memory of all processes, PSS in MiB",
        ("way", "workers", "before", "after", "one more", "of plain"),
        tuple(rows),
        (
            "before: the preloaded process; ours: the broker and the nursery. after: with the"
            " workers, and ours with their keepers.",
        ),
    )
    bars = []
    if plain and ours:
        bars.append(
            Bar("one more worker, of a plain process", ours.each / plain.each, 0.5, "at most")
        )
    samples = {title: asdict(weight) for title, weight in weights.items()}
    return Result("memory", (table,), tuple(bars), samples, failures)


def _plain(home: Sandbox, count: int) -> Weights:
    children = [
        processes.start([sys.executable, _PROGRAM, *marks], home.env, home.log)
        for marks in _marks(home, count)
    ]
    _wait_until_idle(home, count)
    return Weights(count, 0, sum(processes.pss(child.pid) for child in children))


def _forked(home: Sandbox, count: int) -> Weights:
    """By this module run as a program, which preloads, tells so, and forks when it is told to."""
    words: list[str | Path] = [sys.executable, "-m", "bench.memory", home.directory, str(count)]
    parent = processes.start(words, {**home.env, "PYTHONPATH": str(ROOT)}, home.log)
    processes.wait_for((home.directory / "preloaded").exists, "preloading")
    before = _weigh(parent.pid)
    parent.send_signal(signal.SIGUSR1)
    _wait_until_idle(home, count)
    return Weights(count, before, _weigh(parent.pid))


def _leased(home: Sandbox, count: int) -> Weights:
    home.warm_up()
    broker = home.status()["pid"]
    before = _weigh(broker)
    clients = [
        processes.start([SUBLET, "run", "--memory", _CEILING, _PROGRAM, *marks], home.env, home.log)
        for marks in _marks(home, count)
    ]
    _wait_until_idle(home, count)
    if len(home.status()["leases"]) != count:
        raise processes.Failed(f"not all {count} workers hold a lease")
    return Weights(
        count, before, _weigh(broker), clients=sum(processes.pss(client.pid) for client in clients)
    )


def _weigh(pid: int) -> int:
    return sum(processes.pss(process.pid) for process in processes.tree(pid))


def _marks(home: Sandbox, count: int) -> list[list[Path]]:
    """For each worker: the file of its first operation, and the one that it leaves when idle."""
    return [[home.directory / f"stamp-{n}", home.directory / f"idle-{n}"] for n in range(count)]


def _wait_until_idle(home: Sandbox, count: int) -> None:
    processes.wait_for(
        lambda: len(list(home.directory.glob("idle-*"))) == count, f"{count} fits", every=0.1
    )


@contextmanager
def _held(number: int) -> Iterator[None]:
    """Keep a signal waiting, so that it cannot come too early."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def fork_when_told(directory: Path, count: int) -> None:
    """The bare preloaded process: its children fit and idle."""
    with _held(signal.SIGUSR1):
        with ways.BY_KEY["fork"].open(count):
            pass  # Opening it has preloaded.
        (directory / "preloaded").touch()
        signal.sigwait({signal.SIGUSR1})
    from bench.programs import short_job

    for n in range(count):
        stamp, idle = str(directory / f"stamp-{n}"), str(directory / f"idle-{n}")
        ways.forked(partial(short_job.main, stamp, idle))
    os.wait()


if __name__ == "__main__":
    fork_when_told(Path(sys.argv[1]), int(sys.argv[2]))
