"""A launcher in a process of its own: keepers and programs without a broker or TensorFlow.

    test ──one JSON line per call──▶ process (reactor, launcher) ── keeper ── program
         ◀──one JSON line per report──

That process can be killed and another one put in its place, like a broker.
"""

import io
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sublet.backends.backend import Ending
from sublet.backends.local.launcher import Launcher
from sublet.domain.job import Process
from sublet.formats import attempt_files
from sublet.keeper import output_files, process_tree, subreaper
from sublet.keeper.cgroup import Cgroup
from sublet.reactor import Reactor
from support.sandbox import PATIENCE, wait_for

TESTS = Path(__file__).parents[1]


def mark(root: Path, run: str) -> str:
    """What tells an attempt's processes apart, also from those of other harnesses."""
    return f"{root}-{run}"


class LauncherHarness:
    """Attempts in one directory. `close` ends them all."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs = root / "runs"
        self.logs = root / "logs"
        self.work = root / "work"
        for directory in (self.runs, self.logs, self.work):
            directory.mkdir()
        self.hire()

    def hire(self) -> None:
        """Start the process with the launcher."""
        path = [str(TESTS), *sys.path]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.launcher_harness", self.root],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "SUBLET_SHOP": str(self.root)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.reports: queue.Queue[dict[str, Any]] = queue.Queue()
        self.heard: list[dict[str, Any]] = []
        out = self.process.stdout
        reports = self.reports

        def listen() -> None:
            assert out is not None
            for line in out:
                reports.put(json.loads(line))

        self._listener = threading.Thread(target=listen, daemon=True)
        self._listener.start()

    def fire(self) -> None:
        """Kill that process, as a broker may be killed."""
        self.process.kill()
        self._part()

    def _part(self) -> None:
        self.process.wait()
        self._listener.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def call(self, name: str, *args: Any) -> None:
        """Call the launcher."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, *args]) + "\n")
        self.process.stdin.flush()

    def start(self, run: str, code: str, split: bool = False, **spec: Any) -> "LaunchedAttempt":
        """Run Python code as an attempt, and wait until its keeper has said that it runs."""
        argv = [sys.executable, "-c", code]
        limit = spec.pop("limit", output_files.LIMIT)
        paths = output_files.paths(str(self.logs), run, split)
        whole = {
            "argv": argv,
            "cwd": str(self.work),
            "environ": {
                **os.environ,
                "SHOP_MARK": mark(self.root, run),
                "SUBLET_SHOP": str(self.root),
            },
            "notes": [],
            "umask": 0o077,
            "nice": 0,
            "affinity": sorted(os.sched_getaffinity(0)),
            "ignored": [],
            "limits": {},
            "client": None,
            "logs": {"paths": paths, "limit": limit},
            **spec,
        }
        self.call("start", run, whole, split)
        ending = self.await_report("started", run)
        return LaunchedAttempt(self, run, ending["worker"], ending["keeper"])

    def await_report(self, event: str, run: str) -> dict[str, Any]:
        """The next such report; those on the way to it are remembered in `heard`."""
        while True:
            try:
                ending = self.reports.get(timeout=PATIENCE)
            except queue.Empty:
                raise AssertionError(f"no {event} of {run}; heard {self.heard}") from None
            self.heard.append(ending)
            if ending["event"] == event and ending["run"] == run:
                return ending

    def living(self) -> list[int]:
        """The processes that were started from here, without the launcher's own."""
        mark = f"SUBLET_SHOP={self.root}".encode() + b"\0"
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and process_tree.start_time(int(entry.name)) is not None:
                try:
                    if mark in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
                except OSError:
                    continue
        return [pid for pid in found if pid != self.process.pid]

    def close(self) -> None:
        """End everything."""
        if self.process.returncode is None:
            self.fire()
        wait_for(self._emptied, "no process is left")

    def _emptied(self) -> bool:
        # Again and again: some of them fork.
        left = self.living()
        process_tree.send(left, signal.SIGKILL)
        return not left


class LaunchedAttempt:
    """One attempt, as a test sees it."""

    def __init__(self, launcher: LauncherHarness, run: str, worker: int, keeper: int) -> None:
        self.launcher = launcher
        self.run = run
        self.worker = worker
        self.keeper = keeper
        self.directory = str(launcher.runs / run)

    @property
    def log(self) -> Path:
        return self.launcher.logs / f"{self.run}.log"

    def says(self, text: str) -> None:
        """Wait until this stands in its output."""
        wait_for(lambda: text.encode() in self.log.read_bytes(), f"it says {text!r}")

    def call(self, name: str, *args: Any) -> None:
        self.launcher.call(name, self.run, *args)

    def ended(self) -> dict[str, Any]:
        """How it ended."""
        return self.launcher.await_report("ended", self.run)

    def members(self) -> list[int]:
        """The processes of its tree that live."""
        processes = process_tree.everybody()
        found = process_tree.related(processes, {self.worker, self.keeper})
        return list(found | process_tree.marked(processes, mark(self.launcher.root, self.run)))

    def stands(self) -> bool:
        """Whether nothing of its tree runs: stopped by signals, or frozen as a group."""
        programs = [pid for pid in self.members() if pid != self.keeper]
        return bool(programs) and (all(map(process_tree.stands, programs)) or self.frozen())

    def group(self) -> str | None:
        """Its control group, if it has one."""
        return (attempt_files.read(self.directory, "worker.json") or {}).get("group")

    def frozen(self) -> bool:
        group = self.group()
        if group is None:
            return False
        try:
            return "frozen 1" in (Path(group) / "cgroup.events").read_text()
        except OSError:
            return False

    @property
    def witness(self) -> int:
        """The parent of its keeper."""
        return int((attempt_files.read(self.directory, "worker.json") or {})["witness"]["pid"])

    def kill_keeper(self) -> None:
        os.kill(self.keeper, signal.SIGKILL)
        wait_for(lambda: process_tree.start_time(self.keeper) is None, "the keeper is dead")


class _PrintedReports:
    """The reports of a launcher, as lines."""

    def started(self, run: str, keeper: Process, worker: Process, how: str) -> None:
        _say({"event": "started", "run": run, "keeper": keeper.pid, "worker": worker.pid})

    def sampled(self, run: str, now: int, peak: int, pids: list[int], busy: float) -> None:
        _say({"event": "sampled", "run": run, "busy": busy})

    def ended(self, run: str, ending: Ending) -> None:
        _say({"event": "ended", "run": run, "status": ending.status, "stopped": ending.stopped})

    def never_ran(self, run: str, why: str) -> None:
        _say({"event": "never ran", "run": run, "why": why})

    def nurseries_changed(self) -> None:
        pass


def _say(report: dict[str, Any]) -> None:
    print(json.dumps(report), flush=True)


def main() -> None:
    """The process with the launcher."""
    root = Path(sys.argv[1])
    subreaper.adopt_orphans()
    reactor = Reactor()
    launcher = Launcher(reactor, root / "runs", root / "log", _PrintedReports())
    reading = subreaper.wake_on(signal.SIGCHLD).reading

    def children() -> None:
        os.read(reading, 4096)
        launcher.reap()

    # Unbuffered: a line that was read ahead would not wake the reactor.
    stdin = io.FileIO(0)

    def calls() -> None:
        line = stdin.readline()
        if not line:
            os._exit(0)
        name, run, *args = json.loads(line)
        if name == "start":
            spec, split = args
            streams = output_files.open_streams(str(root / "logs"), run, split)
            launcher.start(run, b"{}", spec, mark(root, run), streams, "a test", None)
            for number in streams:
                os.close(number)
        elif name == "adopt":
            keeper, worker = (
                Process(pid, process_tree.start_time(pid) or -1) if pid else None
                for pid in args or (None, None)
            )
            launcher.adopt(run, mark(root, run), False, keeper, worker)
        else:
            getattr(launcher, name)(run, *args)

    reactor.watch(reading, children)
    reactor.watch(0, calls)
    while True:
        reactor.run_once()


@pytest.fixture
def launcher(real_processes: None, tmp_path: Path) -> Iterator[LauncherHarness]:
    """A launcher in a process of its own."""
    made = LauncherHarness(tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["with a control group", "without one"])
def any_launcher(
    real_processes: None,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[LauncherHarness]:
    """The same, in both ways in which a tree can be held together."""
    if request.param == "without one":
        monkeypatch.setenv("SUBLET_NO_CGROUP", "1")
    elif (group := Cgroup.make("probe-of-a-test")) is None:
        pytest.skip("this user may make no control group (version 2)")
    else:
        group.close()
    made = LauncherHarness(tmp_path)
    yield made
    made.close()


if __name__ == "__main__":
    main()
