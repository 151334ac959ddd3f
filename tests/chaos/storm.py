"""One run of the load under faults, and the verdict."""

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from chaos import checker, history, leftovers
from chaos.faults import ACTS, VICTIMS, Disk, Faults, WallClock
from chaos.history import Holder, Sample
from chaos.load import Load
from sublet.broker.ledger import Ledger
from sublet.domain.job import Job
from support.sandbox import Sandbox

CAPACITY = "3GiB"
_DRAIN = 120.0
"""Seconds in which all that was asked for ends, once nobody harms it."""


class Storm:
    """One home, one load, one seed. `run` says what broke a promise."""

    def __init__(
        self, seed: int, say: Callable[[str], None] = print, acts: Collection[str] = ACTS
    ) -> None:
        self.seed = seed
        self.root = Path(mkdtemp(prefix="sublet-chaos-"))
        self._say = say
        self.disk = Disk(self.root / "h")
        self.clock = WallClock(self.root)
        self.history = self.root / "history"
        self.history.touch()
        locks, models = self.root / "locks", self.root / "models"
        for directory in (locks, models):
            directory.mkdir()
        self.sandbox = Sandbox(
            self.disk.path,
            self.root / "work",
            SUBLET_CPU_MEMORY=CAPACITY,
            CHAOS_HISTORY=str(self.history),
            CHAOS_LOCKS=str(locks),
            TF_CPP_MIN_LOG_LEVEL="3",
            **self.clock.environ,
        )
        self.load = Load(self.sandbox, models, seed)
        self.faults = Faults(self.load, self.history, self.disk, self.clock, seed, acts)
        self.samples: list[Sample] = []
        self.broken: list[str] = []
        self.table: list[tuple[str, str]] = []
        self._over = threading.Event()

    def run(self, seconds: float, every: float = 1.0) -> list[str]:
        """Hurt the load for so long, let it come to its end, and look."""
        began = time.monotonic()
        self.sandbox.warm()
        self.faults.loading = time.monotonic() - began
        watching = [
            threading.Thread(target=self._sample_ledger, daemon=True),
            threading.Thread(target=self._sample_status, daemon=True),
        ]
        for thread in watching:
            thread.start()
        self.load.start()
        self._wait_for_server()
        began = time.monotonic()
        reported = began
        while (now := time.monotonic()) < began + seconds:
            self.faults.once()
            until = now + every
            while time.monotonic() < until:
                self.faults.tick()
                time.sleep(0.05)
            if now > reported + 10.0:
                reported = now
                self._say(self._progress(now - began))
        self.faults.end()
        self.broken += self.load.stop(_DRAIN)
        if not self.broken:
            self._drain()
        self._over.set()
        for thread in watching:
            thread.join()
        self.broken += self._works_again()
        self.broken += self.load.close()
        reasons = self._reasons()
        self._down()
        self._check(reasons)
        return self.broken

    def close(self) -> str:
        """Take it all away; if a promise was broken, say where everything is kept."""
        for pid in self.sandbox.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        kept = ""
        if self.broken:
            kept = str(self.root / "home")
            subprocess.run(["cp", "-a", str(self.disk.path), kept], check=False)
            for name, what in (("faults", self.faults.list), ("asked", self.load.asked)):
                (self.root / name).write_text("".join(f"{one}\n" for one in what))
        self.disk.close()
        if not self.broken:
            subprocess.run(["rm", "-rf", str(self.root)], check=False)
        return kept

    def _wait_for_server(self) -> None:
        until = time.monotonic() + _DRAIN
        while self.load.server is None and time.monotonic() < until:
            time.sleep(0.1)

    # While it runs.

    def _sample_ledger(self) -> None:
        """The broker's own file says who holds what, also while no broker is running."""
        while not self._over.wait(0.2):
            with contextlib.suppress(sqlite3.Error):
                found = self._holders()
                self.samples.append(Sample("ledger", {"cpu": 3 << 30}, found))

    def _holders(self) -> tuple[Holder, ...]:
        path = self.sandbox.home / "ledger.sqlite"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as ledger:
            rows = ledger.execute("SELECT record FROM jobs WHERE live").fetchall()
        found = []
        for (record,) in rows:
            job = json.loads(record)
            state = job["state"]["was"] if job["state"]["type"] == "paused" else job["state"]
            if "lease" in state:
                lease = state["lease"]
                within = job["spec"].get("within")
                found.append(
                    Holder(job["id"], lease["charge"], lease["ceiling"], lease["device"], within)
                )
        return tuple(found)

    def _sample_status(self) -> None:
        while not self._over.wait(1.0):
            with contextlib.suppress(subprocess.TimeoutExpired):
                answer = self.sandbox.sublet("status", "--json", timeout=30)
                if answer.returncode == 0:
                    self.samples.append(_sample(json.loads(answer.stdout)))

    def _progress(self, seconds: float) -> str:
        kills, stops = self.faults.count("kill"), self.faults.count("stop")
        asked = len(self.load.asked)
        return (
            f"{seconds:5.0f} s  {kills} kills, {stops} stops, "
            f"{self.faults.count('full disk')} full disks, "
            f"{self.faults.count('clock')} clock jumps; "
            f"{asked} commands, {sum(self.load.answers.values())} REST answers, "
            f"{self.load.servers} servers; {len(self.load.wrong)} odd"
            + "".join(f"\n         {wrong}" for wrong in self.load.wrong[-1:])
        )

    # Afterwards.

    def _rows(self) -> list[dict[str, Any]]:
        answer = self.sandbox.sublet("ps", "--all", "--json")
        if answer.returncode:
            self.broken.append(f"`sublet ps` ended with {answer.returncode}: {answer.stderr}")
            return []
        return json.loads(answer.stdout)["jobs"]  # type: ignore[no-any-return]

    def _drain(self) -> None:
        """The queue runs empty, but for the server's engine."""
        # A `resume` may have been refused, for a full disk.
        if paused := [str(row["id"]) for row in self._rows() if row["state"] == "paused"]:
            self.sandbox.sublet("resume", *paused)
        until = time.monotonic() + _DRAIN
        while time.monotonic() < until:
            live = [row for row in self._rows() if row["state"] != "finished"]
            if all(row["name"].startswith("serve") for row in live):
                return
            time.sleep(0.5)
        self.broken.append(f"these jobs did not end in {_DRAIN:.0f} s: {live}")

    def _reasons(self) -> dict[int, str]:
        return {row["id"]: row["reason"] for row in self._rows() if row["state"] != "finished"}

    def _works_again(self) -> list[str]:
        """Nothing of what happened has lasting effects."""
        before = len(self.load.asked)
        dice = random.Random(self.seed)
        for act in (self.load._run, self.load._nest, self.load._pool, self.load._hold):
            act(dice)
        found = [
            f"afterwards: {one.kind} {one.name} ended with {one.code}: {one.said}"
            for one in self.load.asked[before:]
            if one.code != one.expected
        ]
        server = self.load.server
        if server is None or server.process.poll() is not None:
            return found
        until = time.monotonic() + _DRAIN
        answer: Any = None
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                answer = server.predict("half", [2.0])
                if answer == (200, {"predictions": [3.0]}):
                    return found
            time.sleep(0.2)
        return [*found, f"afterwards: the server answers {answer}"]

    def _down(self) -> None:
        try:
            down = self.sandbox.sublet("down", "--stop")
            if down.returncode:
                self.broken.append(f"`sublet down --stop`: {down.stderr}")
        except subprocess.TimeoutExpired:
            self.broken.append("`sublet down --stop` does not end")
        until = time.monotonic() + 30.0
        while self.sandbox.processes() and time.monotonic() < until:
            time.sleep(0.1)

    def _check(self, reasons: dict[int, str]) -> None:
        events, asked, faults = history.read(self.history), self.load.asked, self.faults.list
        jobs = self._jobs()
        acts = [one.name.split() for one in asked if one.kind == "act"]
        cancelled = {int(number) for verb, number in acts if verb == "cancel"}
        codes = checker.Codes(events, faults, jobs, cancelled)
        self.broken += self.load.wrong
        self.broken += checker.attempts_overlap(events)
        self.broken += checker.jobs_lost(asked, jobs, reasons)
        self.broken += checker.runs_again(events, jobs)
        self.broken += checker.over_capacity(self.samples)
        self.broken += checker.out_of_order(events, asked, jobs)
        self.broken += codes.of_jobs()
        self.broken += codes.of_commands(asked)
        self.broken += checker.calls_wrong(events, faults)
        self.broken += leftovers.after(self.sandbox, events, self.faults.keepers)
        self.broken += self._log_words()
        calls = [one for one in events if one.kind == "answer"]
        models = [one.facts["counts"] for one in events if one.kind == "calls"]
        self.table = [
            *((f"killed: {kind}", str(self.faults.count("kill", kind))) for kind in VICTIMS),
            ("killed in all", str(self.faults.count("kill"))),
            ("stopped for a while", str(self.faults.count("stop"))),
            ("full disks", str(self.faults.count("full disk")) if self.disk.small else "not tried"),
            ("clock jumps", str(self.faults.count("clock")) if self.clock.environ else "not tried"),
            ("commands", str(len(asked))),
            ("jobs in the ledger", str(len(jobs))),
            ("attempts that began", str(sum(one.kind == "start" for one in events))),
            ("jobs tried again", str(sum(bool(job.past) for job in jobs.values()))),
            ("exit codes that nobody saw", str(codes.lost)),
            ("calls of pools", f"{len(calls)}, right {_count(calls, 'right')}"),
            ("answers over REST", str(dict(self.load.answers))),
            ("answers to sublet.connect", str(_sum(models))),
            ("samples of charges", str(len(self.samples))),
            ("promises broken", str(len(self.broken))),
        ]

    def _jobs(self) -> dict[int, Job]:
        ledger = Ledger.open(self.sandbox.home / "ledger.sqlite")
        try:
            found = (ledger.find(number) for number in sorted(ledger.numbers()))
            return {job.id: job for job in found if job is not None}
        finally:
            ledger.close()

    def _log_words(self) -> list[str]:
        """Nobody of ours ended with a traceback, unless a full disk or a kill made it."""
        found: Counter[str] = Counter()
        for path in self.sandbox.home.glob("broker.log*"):
            text = path.read_text(errors="replace")
            found.update(text.split("Traceback (most recent call last)")[1:])
        return [f"the broker's log, {n} times: Traceback{text[:1500]}" for text, n in found.items()]


def _sample(status: dict[str, Any]) -> Sample:
    return Sample(
        "status",
        {row["device"]["id"]: row["device"]["capacity"] for row in status["devices"]},
        tuple(
            Holder(row["job"], row["charge"], row["lease"], row["device"], row["within"])
            for row in status["leases"]
        ),
    )


def _count(events: list[history.Event], how: str) -> int:
    return sum(one.facts.get("how") == how for one in events)


def _sum(counts: list[dict[str, int]]) -> dict[str, int]:
    names = {name for one in counts for name in one}
    return {name: sum(one.get(name, 0) for one in counts) for name in sorted(names)}
