"""The mixed load: everything that a user can have running in one home."""

import http.client
import itertools
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from chaos.history import Asked
from support.sandbox import Sandbox
from support.servers import HALF, Server, place

PROGRAMS = Path(__file__).parent / "programs"
JOB = str(PROGRAMS / "job.py")
_TAIL = 2000


class Load:
    """Threads that ask for one thing after the other, until `stop`."""

    def __init__(self, sandbox: Sandbox, models: Path, seed: int) -> None:
        self.sandbox = sandbox
        self.asked: list[Asked] = []
        self.answers: Counter[str] = Counter()
        """What REST callers were told."""
        self.wrong: list[str] = []
        """Answers that no fault excuses."""
        self.server: Server | None = None
        self.servers = 0
        self._server_began = 0.0
        self._models = models
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._over = threading.Event()
        self._seed = seed
        place(HALF, models, "half", 1)
        parts: list[tuple[str, Callable[[random.Random], None]]] = [
            *((f"runs {n}", self._run) for n in range(3)),
            ("jobs", self._submit),
            ("nests", self._nest),
            ("pools", self._pool),
            ("leases", self._hold),
            ("server", self._serve),
            ("REST 1", self._rest),
            ("REST 2", self._rest),
            ("connect", self._connect),
        ]
        self._threads = [
            threading.Thread(target=self._repeat, args=part, name=part[0], daemon=True)
            for part in parts
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def clients(self) -> dict[int, str]:
        """The commands that run now, and what each is for."""
        with self._lock:
            return {pid: str(one.args) for pid, one in self._running.items() if one.poll() is None}

    def stop(self, patience: float) -> list[str]:
        """Ask for nothing more, and wait for what was asked; says what did not end."""
        self._over.set()
        until = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.1, until - time.monotonic()))
        late = [thread.name for thread in self._threads if thread.is_alive()]
        hung = [f"{words} (pid {pid})" for pid, words in self.clients().items()]
        return [f"did not end in {patience:.0f} s: {late}, commands: {hung}"] if late else []

    def close(self) -> list[str]:
        """End the server as a service manager does; says what was wrong with that."""
        if self.server is None:
            return []
        try:
            code = self.server.close()
        except AssertionError as wrong:
            return [f"the server's end: {str(wrong)[-_TAIL:]}"]
        return [f"the server ended with {code}"] if code else []

    def _repeat(self, name: str, act: Callable[[random.Random], None]) -> None:
        dice = random.Random(f"{self._seed} {name}")
        while not self._over.is_set():
            try:
                act(dice)
            except Exception as error:
                self.wrong.append(f"the load itself, {name}: {error!r}")
                self._over.wait(1.0)

    def _name(self, kind: str) -> str:
        return f"{kind}{next(self._numbers)}"

    # Commands.

    def _do(self, kind: str, name: str, expected: int, words: list[str], **facts: Any) -> Asked:
        """Run a command to its end."""
        began = time.monotonic()
        # Files and no pipes: what a killed program leaves behind would hold those open.
        with (
            TemporaryFile("w+", errors="replace") as out,
            TemporaryFile("w+", errors="replace") as said_to,
        ):
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=self.sandbox.work,
                env=self.sandbox.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=said_to,
            )
            with self._lock:
                self._running[process.pid] = process
            process.wait()
            with self._lock:
                del self._running[process.pid]
            out.seek(0)
            said_to.seek(0)
            said = said_to.read()
            if kind == "submit" and process.returncode == 0:
                facts["jobs"] = tuple(json.load(out)["ids"])
        done = Asked(
            kind, name, expected, process.pid, process.returncode, said[-_TAIL:], began,
            time.monotonic(), **facts,
        )  # fmt: skip
        self.asked.append(done)
        return done

    def _run(self, dice: random.Random) -> None:
        name, code = self._name("run"), dice.choice((0, 0, 7))
        options = dice.choice((["--cold"], ["--cold"], []))
        memory = dice.choice(("64MiB", "128MiB", "700MiB"))
        extra = dice.choice(([], [], ["tensorflow"], ["child"]))
        seconds = f"{dice.uniform(0.1, 2.0):.2f}"
        words = ["run", *options, "--memory", memory, JOB, name, seconds, str(code), *extra]
        self._do("run", name, code, ["-m", "sublet", *words])

    def _submit(self, dice: random.Random) -> None:
        """A job, one that needs it to end well, and an array of which two run at a time."""
        first = self._queue(dice, self._name("job"), dice.choice((0, 0, 3)))
        if not first.jobs:
            return
        second = self._queue(dice, self._name("job"), 0, after_ok=first.jobs)
        array = self._queue(dice, self._name("array"), 0, array="0-3%2", after=first.jobs)
        if dice.random() < 0.3 and second.jobs:
            verb = dice.choice((["cancel"], ["pause"], ["pause"]))
            number = str(dice.choice(second.jobs))
            self._do("act", f"{verb[0]} {number}", 0, ["-m", "sublet", *verb, number])
            if verb == ["pause"]:
                # It may have ended meanwhile, or not have been paused.
                self._do("resume", f"resume {number}", 0, ["-m", "sublet", "resume", number])
        waited = [str(number) for number in (*second.jobs, *array.jobs)]
        if waited:
            self._do("wait", " ".join(waited), 0, ["-m", "sublet", "wait", *waited])

    def _queue(
        self,
        dice: random.Random,
        name: str,
        code: int,
        after_ok: tuple[int, ...] = (),
        after: tuple[int, ...] = (),
        array: str = "",
    ) -> Asked:
        words = ["submit", "--json", "--memory", "64MiB", "--name", name]
        words += [dice.choice(("--retries=2", "--retries=0"))]
        words += [f"--after-ok={number}" for number in after_ok]
        words += [f"--after={number}" for number in after]
        words += [*(["--cold"] if dice.random() < 0.6 else [])]
        words += ["--array", array] if array else []
        label = f"{name}[{{index}}]" if array else name
        words += [JOB, label, f"{dice.uniform(0.1, 1.0):.2f}", str(code)]
        words += dice.choice(([], [], ["child"]))
        return self._do(
            "submit", name, 0, ["-m", "sublet", *words], after_ok=after_ok,
            at_once=2 if array else 0,
        )  # fmt: skip

    def _nest(self, dice: random.Random) -> None:
        name = self._name("outer")
        words = ["run", "-q", "--memory", "512MiB", str(PROGRAMS / "outer.py"), name]
        self._do("run", name, 0, ["-m", "sublet", *words])

    def _pool(self, dice: random.Random) -> None:
        name = self._name("pool")
        self._do("pool", name, 0, [str(PROGRAMS / "pool.py"), name, "8"])

    def _hold(self, dice: random.Random) -> None:
        name = self._name("holder")
        seconds = f"{dice.uniform(0.2, 2.0):.2f}"
        self._do("hold", name, 0, [str(PROGRAMS / "holder.py"), name, seconds])

    def _connect(self, dice: random.Random) -> None:
        if self.server is None:
            self._over.wait(0.2)
            return
        name = self._name("caller")
        self._do("caller", name, 0, [str(PROGRAMS / "caller.py"), name, "5"])

    # Serving.

    def _serve(self, dice: random.Random) -> None:
        """There is always a server; one that has ended is followed by the next."""
        if self.server is not None:
            if self.server.process.poll() is None:
                self._over.wait(0.1)
                return
            self._note_end(self.server, "it served")
            self.server = None
        self._server_began = time.monotonic()
        fresh = Server(
            self.sandbox, str(self._models), "--memory", "256MiB", "--frontends", "2", ready=False
        )
        self.servers += 1
        assert fresh.process.stdout is not None
        if line := fresh.process.stdout.readline():
            fresh.facts = json.loads(line)
            self.server = fresh
        else:
            self._note_end(fresh, "it started")

    def _note_end(self, server: Server, when: str) -> None:
        """It has ended; all that it had started is to be gone, too."""
        server.draining = True
        try:
            server.close()
        except AssertionError as wrong:
            self.wrong.append(f"a server that ended while {when}: {str(wrong)[-_TAIL:]}")
        process, said = server.process, "".join(server.errors)[-_TAIL:]
        times = self._server_began, time.monotonic()
        self.asked.append(Asked("serve", when, 0, process.pid, process.returncode, said, *times))

    def _rest(self, dice: random.Random) -> None:
        server = self.server
        if server is None:
            self._over.wait(0.1)
            return
        connection = server.connection()
        connection.timeout = 30
        try:
            while not self._over.is_set() and self.server is server:
                value = float(dice.randrange(100))
                body = json.dumps({"instances": [value]})
                connection.request("POST", "/v1/models/half:predict", body)
                reply = connection.getresponse()
                answer = json.loads(reply.read())
                if reply.status == 200 and answer != {"predictions": [value / 2 + 2]}:
                    self.wrong.append(f"REST: half of {value} is {answer}")
                elif reply.status not in (200, 503, 504):
                    self.wrong.append(f"REST: {reply.status} {answer}")
                self.answers[str(reply.status)] += 1
                # One connection would be with one front end.
                if reply.will_close or dice.random() < 0.05:
                    return
                self._over.wait(0.01)
        except (OSError, http.client.HTTPException) as error:
            self.answers[type(error).__name__] += 1
            self._over.wait(0.05)
        finally:
            connection.close()
