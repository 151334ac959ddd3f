"""What is done to the load: processes are killed or stopped, the disk fills, the clock jumps."""

import contextlib
import os
import random
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Collection
from pathlib import Path

from chaos.history import Fault
from chaos.load import Load
from sublet.keeper import process_tree

VICTIMS = {
    "broker": 4,
    "keeper": 5,
    "witness": 2,
    "worker": 5,
    "nursery": 1,
    "client": 4,
    "engine": 2,
    "front end": 2,
    "server": 1,
}
"""What may be hurt, and how often compared with others."""
ACTS = {"kill": 14, "stop": 4, "full disk": 1, "clock": 1}
"""What may happen, and how often compared with others."""
_SPAN = 1 << 20
_LONGEST_STOP = 4.0


class Disk:
    """A small file system for a home, that can be filled. Needs root; without it, a directory."""

    def __init__(self, path: Path, megabytes: int = 64) -> None:
        self.path = path
        path.mkdir(mode=0o700)
        self.small = False
        if os.geteuid() == 0:
            size = f"size={megabytes}m,mode=0700"
            mount = ["mount", "-t", "tmpfs", "-o", size, "sublet-chaos", str(path)]
            self.small = not subprocess.run(mount, capture_output=True, check=False).returncode

    def fill(self) -> None:
        """Fill the disk to its last byte."""
        with contextlib.suppress(OSError), (self.path / "ballast").open("ab") as file:
            while True:
                os.write(file.fileno(), bytes(1 << 16))

    def free(self) -> None:
        (self.path / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        if self.small:
            subprocess.run(["umount", "-l", str(self.path)], check=True)


class WallClock:
    """The wall clock of all that is started with `environ`; needs a C compiler.

    What is forked from a nursery sees the machine's: that one's environment is its own.
    """

    def __init__(self, directory: Path) -> None:
        self.environ: dict[str, str] = {}
        library, self._file = directory / "clock.so", directory / "clock"
        self._set(0)
        compiler = shutil.which("cc")
        if compiler is None:
            return
        source = str(Path(__file__).with_name("clock.c"))
        words = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), source]
        if subprocess.run(words, capture_output=True, check=False).returncode == 0:
            self.environ = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(self._file)}

    def jump(self, seconds: int) -> None:
        self._set(seconds)

    def _set(self, seconds: int) -> None:
        # In place: processes have mapped this very file.
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("<q", seconds))


class Faults:
    """One at a time, as the dice say. `list` has all of them."""

    def __init__(
        self,
        load: Load,
        history: Path,
        disk: Disk,
        clock: WallClock,
        seed: int,
        acts: Collection[str],
    ) -> None:
        self.list: list[Fault] = []
        self.keepers: set[int] = set()
        """All keepers that were seen."""
        self.loading = 0.0
        """Seconds that TensorFlow takes to load here."""
        self._calm_until = 0.0
        self._load = load
        self._history = history
        self._disk = disk
        self._clock = clock
        self._acts = acts
        self._dice = random.Random(f"{seed} faults")
        self._stopped: list[tuple[float, int, int | None]] = []
        self._full_until: float | None = None

    def count(self, how: str, kind: str | None = None) -> int:
        return sum(one.how == how and kind in (None, one.kind) for one in self.list)

    def once(self) -> None:
        """Do one thing that harms."""
        self.tick()
        acts = {name: share for name, share in ACTS.items() if name in self._acts}
        if not self._disk.small or self._full_until is not None:
            acts.pop("full disk", None)
        if not self._clock.environ:
            acts.pop("clock", None)
        how = self._dice.choices(list(acts), list(acts.values()))[0]
        now = time.monotonic()
        if how == "full disk":
            self._full_until = now + self._dice.uniform(0.5, 3.0)
            self._disk.fill()
            self.list.append(Fault(how, "", 0, now, self._full_until))
        elif how == "clock":
            self._clock.jump(self._dice.choice((-86400, -3600, 3600, 86400 * 30, 0)))
            self.list.append(Fault(how, "", 0, now, now))
        else:
            self._hurt(how)

    def tick(self) -> None:
        """End what was to last for a while only."""
        now = time.monotonic()
        for due, pid, start in list(self._stopped):
            if now >= due:
                self._stopped.remove((due, pid, start))
                if process_tree.start_time(pid) == start:
                    process_tree.send([pid], signal.SIGCONT)
        if self._full_until is not None and now >= self._full_until:
            self._disk.free()
            self._full_until = None

    def end(self) -> None:
        """End all harm that still lasts."""
        self._stopped = [(0.0, pid, start) for _, pid, start in self._stopped]
        if self._full_until is not None:
            self._full_until = 0.0
        self.tick()

    def _hurt(self, how: str) -> None:
        there = self.census()
        # Not among those who are there: when little runs, the broker would be hurt all the time.
        kind = self._dice.choices(list(VICTIMS), list(VICTIMS.values()))[0]
        if not there[kind] or (kind in ("broker", "nursery") and not self._may_load_anew()):
            return
        pid = self._dice.choice(sorted(there[kind]))
        start, now = process_tree.start_time(pid), time.monotonic()
        if start is None:
            return
        until = now
        if how == "stop":
            until += self._dice.uniform(0.2, _LONGEST_STOP)
            self._stopped.append((until, pid, start))
        # Written down first: what it leads to may be seen at once.
        self.list.append(Fault(how, kind, pid, now, until))
        process_tree.send([pid], signal.SIGKILL if how == "kill" else signal.SIGSTOP)

    def _may_load_anew(self) -> bool:
        """A nursery goes with its broker. If TensorFlow takes longer to load than both live, little
        would run but brokers: most times, they are left alone for as long as it takes."""
        now = time.monotonic()
        if now < self._calm_until and self._dice.random() < 0.8:
            return False
        self._calm_until = now + self.loading
        return True

    def census(self) -> dict[str, list[int]]:
        """The processes that live, by kind."""
        found: dict[str, list[int]] = {kind: [] for kind in VICTIMS}
        found["client"] = [*self._load.clients()]
        started = self._started()
        for pid, words in self._load.sandbox.processes().items():
            name = process_tree.name(pid)
            if name == "sublet-witness":
                found["witness"].append(pid)
            elif name == "sublet-keeper":
                self.keepers.add(pid)
                found["keeper"].append(pid)
            elif "sublet.broker" in words:
                found["broker"].append(pid)
            elif "import nursery" in words:
                found["nursery"].append(pid)
            elif "sublet.serving.frontend.process" in words:
                found["front end"].append(pid)
            elif "sublet.engine" in words:
                found["engine"].append(pid)
            elif "sublet serve " in words:
                # One that starts takes longer under this load than it takes until its turn comes.
                if self._load.server is not None:
                    found["server"].append(pid)
            elif pid in started and pid not in found["client"]:
                found["worker"].append(pid)
        return found

    def _started(self) -> set[int]:
        """Programs that have said that they run; some have ended since."""
        with self._history.open("rb") as file:
            file.seek(max(0, self._history.stat().st_size - _SPAN // 4))
            tail = file.read().decode(errors="replace")
        return {
            int(line.partition('"pid": ')[2].partition(",")[0])
            for line in tail.splitlines()
            if '"kind": "start"' in line and '"pid": ' in line
        }
