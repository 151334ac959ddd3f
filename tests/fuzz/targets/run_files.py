"""The files in an attempt's directory, which its program can write, as a later broker reads them.

name, 0x1f, content, 0x1e, name …
"""

import json
import os
import shutil
from pathlib import Path

from fuzz import scratch
from fuzz.driver import Random, Target
from sublet.backends.backend import Ending
from sublet.backends.local.launcher import Launcher
from sublet.domain.job import Process
from sublet.reactor import Reactor

_NAMES = ("spec.json", "claim", "worker.json", "exit.json", "fresh.json", "ran", "runtime.json")
_TURNS = 3


class Reports:
    """Whoever is told checks that what it is told has the types it is said to have."""

    def __init__(self) -> None:
        self.over = False

    def started(self, run: str, keeper: Process, worker: Process, how: str) -> None:
        assert all(type(one) is int for one in (*_fields(keeper), *_fields(worker)))
        assert isinstance(how, str)

    def sampled(self, run: str, now: int, peak: int, pids: list[int], busy: float) -> None:
        raise AssertionError("there is no keeper that could say so")

    def ended(self, run: str, ending: Ending) -> None:
        self.over = True
        assert ending.status is None or type(ending.status) is int
        assert ending.system_peak is None or type(ending.system_peak) is int
        assert ending.ran is None or isinstance(ending.ran, float | int)
        assert isinstance(ending.stopped, str)
        assert isinstance(ending.note, str)
        assert all(isinstance(one, str) for one in ending.left)
        if ending.status is not None:
            os.WIFSIGNALED(ending.status)

    def never_ran(self, run: str, why: str) -> None:
        self.over = True

    def nurseries_changed(self) -> None:
        raise AssertionError("there is no nursery")


def _fields(process: Process) -> tuple[int, int]:
    return process.pid, process.start


def target() -> Target:
    root = scratch.directory()
    # A process that can be named in a file, and that is none of this attempt's.
    me = {"pid": os.getpid(), "start": 1}
    gone = {"pid": 1 << 22, "start": 5}
    who = {"pid": 1 << 22, "start": 7, "keeper": gone, "how": "warm", "group": None, "began": 1.5}
    spec = {"time": 5.0, "grace": 1.0, "affinity": [0], "logs": None, "client": None}
    ended = {"status": 0, "stopped": "", "system_peak": 5, "ran": 1.0, "left": []}
    seeds: list[dict[str, object]] = [
        {"spec.json": spec, "claim": gone, "worker.json": who, "ran": "", "exit.json": ended},
        {"spec.json": spec, "claim": gone, "worker.json": who, "ran": ""},
        {"spec.json": spec, "claim": me, "worker.json": who | {"pid": os.getppid()}},
        {"spec.json": spec, "claim": {"broker": 7}},
        {"exit.json": ended | {"status": None, "note": "gone", "left": ["sleep (7)"]}},
        {"claim": {}, "fresh.json": {"why": "it was asked for"}},
    ]
    return Target(lambda data: feed(root, data), [_pack(one) for one in seeds], make)


def make(chance: Random) -> bytes:
    """Good JSON with odd values."""
    odd: tuple[object, ...] = (
        None,
        True,
        -1,
        0,
        1,
        1 << 40,
        1 << 80,
        1.5,
        1e308,
        "",
        "x",
        [],
        [1],
        {},
        {"pid": 1},
    )
    fields = (
        *("pid", "start", "keeper", "how", "group", "began", "status", "stopped", "note", "why"),
        *("system_peak", "ran", "left", "time", "grace", "affinity", "logs", "broker"),
    )
    return _pack(
        {
            name: {field: chance.choice(odd) for field in chance.sample(fields, 6)}
            for name in chance.sample(_NAMES, chance.randrange(1, 5))
        }
    )


def _pack(files: dict[str, object]) -> bytes:
    return b"\x1e".join(
        name.encode() + b"\x1f" + json.dumps(one).encode() for name, one in files.items()
    )


def feed(root: Path, data: bytes) -> None:
    directory = root / "1.1"
    directory.mkdir()
    reactor, reports = Reactor(), Reports()
    launcher = Launcher(reactor, root, root / "log", reports)
    try:
        for part in data.split(b"\x1e"):
            name, _, content = part.partition(b"\x1f")
            if name.decode(errors="replace") in _NAMES:
                (directory / name.decode()).write_bytes(content)
        with scratch.nobody_is_hurt():
            launcher.adopt("1.1", "a mark that nobody has")
            for _ in range(_TURNS):
                if not reports.over:
                    reactor.call_later(0.0, lambda: None)
                    reactor.run_once()
            if not reports.over:
                launcher.pause("1.1", True)
                launcher.stop("1.1", "it was told to", 0.0)
    finally:
        launcher.close()
        reactor.close()
        shutil.rmtree(directory)
