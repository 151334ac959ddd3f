"""A guaranteed training beside an opportunistic one on the same processors.

What the guaranteed one loses, and what the opportunistic one still gets: while the first one
trains without a break, waits for its input half of the time, or only holds its memory.
"""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import figures, processes
from bench.household import PROGRAMS, SUBLET, Household, household
from bench.report import Bar, Result, Table
from sublet.backends.local import packets

_PROGRAM = PROGRAMS / "steady.py"
_SETTLE = 0.4
"""Seconds after a change that are not measured."""
BUSY, INPUT, IDLE = "busy", "input", "idle"
KINDS = {BUSY: "trains without a break", INPUT: "waits for input", IDLE: "only holds memory"}
ALONE, EQUAL, GUEST, NEIGHBOUR = "alone", "beside equal", "beside guest", "neighbour alone"

Rates = Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]
"""Steps a second of the guaranteed program and of its neighbour in each round, by kind of the
guaranteed one, by who runs."""


def measure(quick: bool) -> Result:
    """Who runs changes every few seconds: what drifts in the machine cancels in each round."""
    rounds, window = (2, 1.0) if quick else (10, 2.5)
    rates: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with household() as home:
        home.warm_up()
        for kind in KINDS:
            with (
                _trainer(home, kind) as first,
                _trainer(home, BUSY) as equal,
                _trainer(home, BUSY) as guest,
            ):
                guest.tell({"service": "opportunistic"})
                rates[kind] = _rounds(first, equal, guest, rounds, window)
    return result(rates)


def _rounds(
    first: "_Trainer", equal: "_Trainer", guest: "_Trainer", rounds: int, window: float
) -> dict[str, list[tuple[float, float]]]:
    scenes: list[tuple[str, list[_Trainer], _Trainer]] = [
        (ALONE, [first], guest),
        (GUEST, [first, guest], guest),
        (EQUAL, [first, equal], equal),
        (NEIGHBOUR, [equal], equal),
    ]
    told: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in scenes}
    for number in range(rounds):
        turn = number % len(scenes)
        for name, running, neighbour in scenes[turn:] + scenes[:turn]:
            for one in (first, equal, guest):
                one.tell({"pause": one not in running})
            time.sleep(_SETTLE)
            began, before = time.monotonic(), (first.steps(), neighbour.steps())
            time.sleep(window)
            after, took = (first.steps(), neighbour.steps()), time.monotonic() - began
            mine, theirs = ((b - a) / took for a, b in zip(before, after, strict=True))
            told[name].append((mine, theirs))
    return told


def result(rates: Rates) -> Result:
    """The table and the bars for these rounds."""
    rows, bars = [], []
    for kind, by in rates.items():
        keeps = "–"
        beside_equal = "–"
        if kind != IDLE:
            alone = [mine for mine, _ in by[ALONE]]
            ratio = figures.paired_ratio([mine for mine, _ in by[GUEST]], alone)
            equal = figures.paired_ratio([mine for mine, _ in by[EQUAL]], alone)
            keeps, beside_equal = (f"{value * 100:.1f} %" for value in (ratio, equal))
            cost = (1 - ratio) * 100
            bars.append(Bar(f"guaranteed one {KINDS[kind]}: loses", cost, 5, "at most", "%"))
        full = [theirs for _, theirs in by[NEIGHBOUR]]
        gets = figures.paired_ratio([theirs for _, theirs in by[GUEST]], full)
        rows.append((KINDS[kind], str(len(full)), beside_equal, keeps, f"{gets * 100:.1f} %"))
        if kind == IDLE:
            name = "opportunistic one gets of an idle machine"
            bars.append(Bar(name, gets * 100, 90, "at least", "%"))
    table = Table(
        "speed of two trainings, each as a share of its own speed alone",
        ("guaranteed one", "rounds", "beside equal", "guaranteed", "opportunistic"),
        tuple(rows),
        (
            "Medians of the ratios within each round; alone: the others are paused, and"
            " the neighbour is of the ordinary class.",
            "beside equal: what the guaranteed one keeps beside a neighbour of its own class.",
        ),
    )
    samples = {
        kind: {name: list(pairs) for name, pairs in by.items()} for kind, by in rates.items()
    }
    return Result("classes", (table,), tuple(bars), samples)


class _Trainer:
    """A leased program that counts its steps, and a link to its keeper."""

    def __init__(self, counter: Path, link: socket.socket) -> None:
        self.counter = counter
        self.link = link

    def steps(self) -> int:
        """So many until now."""
        count: int = struct.unpack("q", self.counter.read_bytes())[0]
        return count

    def tell(self, packet: dict[str, Any]) -> None:
        """What a broker tells a keeper."""
        if not packets.send(self.link, packet):
            raise processes.Failed("a program has ended before its time")


@contextlib.contextmanager
def _trainer(home: Household, kind: str) -> Iterator[_Trainer]:
    known = {row["job"] for row in home.status()["leases"]}
    counter = home.directory / f"steps-{len(known)}-{kind}"
    words: list[str | Path] = [SUBLET, "run", "-q", "--memory", "512MiB", _PROGRAM, counter, kind]
    child = processes.start(words, home.env, home.log)
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        run = _await(lambda: _new_run(home, known), "a lease")
        directory = os.open(home.directory / "home" / "runs" / run, os.O_RDONLY)
        try:
            _await(lambda: _connected(link, f"/proc/self/fd/{directory}/keeper.sock"), "a keeper")
        finally:
            os.close(directory)
        trainer = _Trainer(counter, link)
        _await(lambda: counter.exists() and counter.stat().st_size == 8, "a board")
        _await(lambda: trainer.steps() >= 1, "the first step")
        trainer.tell({"pause": True})
        yield trainer
    finally:
        packets.send(link, {"stop": 5.0, "why": "measured"})
        try:
            processes.wait_for(lambda: child.poll() is not None, "the end of a program")
        finally:
            # Not before: what we have not read would make the kernel drop what we have said.
            link.close()


def _new_run(home: Household, known: set[int]) -> str:
    for row in home.status()["leases"]:
        if row["job"] not in known and row["state"] == "running":
            return f"{row['job']}.{row['attempt']}"
    return ""


def _connected(link: socket.socket, path: str) -> bool:
    try:
        link.connect(path)
    except OSError:
        return False
    return True


def _await(condition: Callable[[], Any], what: str) -> Any:
    found: list[Any] = []

    def holds() -> bool:
        found[:] = [condition()]
        return bool(found[0])

    processes.wait_for(holds, what)
    return found[0]
