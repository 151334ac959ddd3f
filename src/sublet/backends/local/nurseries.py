"""The broker's side of its nurseries: one for each interpreter, and for each set of settings that
are read when TensorFlow is loaded.
"""

import functools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from sublet.domain import nursery as domain
from sublet.formats import import_variables, packets
from sublet.inside.warm_start import import_reads, proctitle, program
from sublet.keeper import process_tree
from sublet.reactor import Reactor
from sublet.units import MiB
from sublet.wire.rows import NurseryRow

MOST = 3
"""Nurseries kept at a time; the one that was not used for longest goes first. One that is being
loaded does not go: if more are wanted at once, each would end the other's, and none would ever be
of use."""
USUAL = 256 * MiB
"""What a nursery is taken to hold before any was seen."""
LONGEST_WARM_UP = 120.0
UNWANTED = 10.0
"""Seconds after which nobody seems to wait any more for one that is warm: whoever does comes at
once."""
TRIES = 3
"""Nurseries or births in a row that may come to nothing before programs are started cold."""
REST = 300.0
"""Seconds after which it is tried again."""
_NO_ROOM = "there was no room for its nursery"
_GOODBYE = 3.0
_LOOK = 0.5
_BOOT = (
    "import sys, socket; sys.path.insert(0, sys.argv[2]); "
    "from sublet.nursery import nursery; sys.path.pop(0); "
    "nursery.main(socket.socket(fileno=int(sys.argv[1])))"
)


class Packages(Struct, frozen=True):
    """What is known of the packages of an interpreter, beside what is known of all."""

    reads: frozenset[str] = frozenset()
    """Variables that they read when they are imported."""
    sets: dict[str, str] = {}
    """Variables that they set themselves then: who has these has imported them."""


class NurseryKey(Struct, frozen=True):
    """What has to be equal for two programs to come from one nursery."""

    python: str
    settings: tuple[tuple[str, str], ...]

    @classmethod
    def of(
        cls, python: str, environ: Mapping[str, str], known: "Packages | None" = None
    ) -> "NurseryKey":
        """The nursery that a program in this environment needs, by what is known of the packages
        of its interpreter."""
        known = known or Packages()
        settings = sorted(
            (name, value)
            for name, value in environ.items()
            if value
            and value not in (import_variables.DEFAULTS.get(name), known.sets.get(name))
            and (import_variables.counts_when_loaded(name) or name in known.reads)
        )
        return cls(common_name(python), tuple(settings))


@functools.cache
def common_name(python: str) -> str:
    """One name for the interpreters of a directory that are the same file: `python`, `python3`."""
    directory, name = os.path.split(python)
    shorter = ("python", "python3", f"{name.partition('.')[0]}")
    for other in dict.fromkeys(shorter):
        path = os.path.join(directory, other)
        if os.path.realpath(path) == os.path.realpath(python):
            return path
    return python


class Nursery:
    """One nursery process, as the broker sees it."""

    def __init__(
        self,
        key: NurseryKey,
        process: "subprocess.Popen[bytes]",
        link: socket.socket,
        holds: int,
    ) -> None:
        self.key = key
        self.pid = process.pid
        self.process = process
        self.link = link
        self.state = "warming up"
        self.why = ""
        self.tensorflow = ""
        self.holds = holds
        """Until it is warm, what it is expected to hold."""
        self.useful = False
        """A worker has come from it."""
        self.used = time.monotonic()
        self.attempts: set[str] = set()
        """Those that were ordered here and have not ended."""
        self.packages: dict[str, int] = {}
        """The ages of what it imports from and of files that imports read, as it found them."""
        self.failed_births = 0
        """In a row: workers that have ended before they began."""
        self.off_since = 0.0
        self.gone = False
        """Its process was seen to have ended."""
        self._looked = 0.0

    def outdated(self) -> bool:
        """Whether a fresh interpreter may find other packages or settings by now. Looks once in a
        while."""
        now = time.monotonic()
        if self.state == "off" and self.failed_births and now > self.off_since + REST:
            return True
        if now - self._looked < _LOOK:
            return False
        self._looked = now
        return import_reads.ages(self.packages) != self.packages

    @property
    def warm(self) -> bool:
        """Whether it can fork workers now."""
        return self.state == "warm"


class Nurseries:
    """The nurseries of this broker, by key."""

    def __init__(
        self,
        reactor: Reactor,
        log: Path,
        package: str,
        changed: Callable[[], None],
    ) -> None:
        self._reactor = reactor
        self._log = log
        self._package = package
        self._changed = changed
        self._all: dict[NurseryKey, Nursery] = {}
        self._known: dict[str, Packages] = {}
        """What is known of the packages of each interpreter."""
        self._refused: dict[NurseryKey, str] = {}
        """Those that were wanted and not begun, and why."""
        self._largest = 0
        """The most that any has held."""
        self._useless: dict[NurseryKey, int] = {}
        """How many in a row have ended before a worker came from them."""
        self._leaving: dict[int, Nursery] = {}
        """Those that were let go and hold memory, by pid: they have not gone yet, or programs that
        came from them go on with their pages."""

    def key(self, python: str, environ: Mapping[str, str]) -> NurseryKey:
        """The nursery that a program in this environment needs."""
        return NurseryKey.of(python, environ, self._known.get(common_name(python)))

    def all(self) -> list[Nursery]:
        """The nurseries there are, and those that could not be."""
        return list(self._all.values())

    def rows(self) -> tuple[NurseryRow, ...]:
        """The same, for people and programs that look."""
        return tuple(
            NurseryRow(
                python=nursery.key.python,
                state=f"off: {nursery.why}" if nursery.state == "off" else nursery.state,
                pid=None if nursery.state == "off" else nursery.pid,
                tensorflow=nursery.tensorflow,
                holds=0 if nursery.state == "off" else nursery.holds,
            )
            for nursery in self._all.values()
        )

    def standing(self) -> tuple[domain.Nursery, ...]:
        """The nurseries that hold main memory, or will when they are warm."""
        return tuple(
            domain.Nursery(
                nursery.pid,
                nursery.holds,
                nursery.used,
                idle=nursery.warm and not nursery.attempts,
                leaving=nursery.pid in self._leaving and not nursery.gone,
            )
            for nursery in (*self._living(), *self._leaving.values())
            if nursery.holds
        )

    def pid(self, key: NurseryKey) -> int | None:
        """The process of the nursery of this key; 0 if there is none yet, None if there cannot be
        one now."""
        nursery = self._all.get(key)
        if nursery is None:
            return None if key in self._refused else 0
        return None if nursery.state == "off" else nursery.pid

    def end(self, pid: int) -> None:
        """End an idle nursery for the memory that it holds."""
        for nursery in self._living():
            if nursery.pid == pid and nursery.warm and not nursery.attempts:
                self._drop(nursery)
                self._changed()

    def reaped(self, pid: int) -> None:
        """This child of ours has gone."""
        for nursery in (*self._living(), *self._leaving.values()):
            if nursery.pid == pid:
                nursery.gone = True
                self._settle(nursery)

    def ended(self, attempt_id: str) -> None:
        """An attempt is over, wherever it came from."""
        for nursery in (*self._all.values(), *self._leaving.values()):
            if attempt_id in nursery.attempts:
                nursery.attempts.remove(attempt_id)
                self._settle(nursery)

    def find(self, key: NurseryKey, room: Callable[[], int]) -> Nursery | None:
        """The nursery of this key; it is started if there is none, or none that is up to date. None
        if there is no place for it now, as others are being loaded, or not enough room."""
        nursery = self._all.get(key)
        if nursery is not None and nursery.outdated():
            if nursery.state != "off":
                self._drop(nursery)
            nursery = None
        return nursery or self._start(key, room)

    def reconsider(self, room: int) -> bool:
        """Whether one for which there was no room can be begun now that there is so much."""
        lacking = [key for key, why in self._refused.items() if why == _NO_ROOM]
        if not lacking or room < self._expected:
            return False
        for key in lacking:
            del self._refused[key]
        return True

    def why_cold(self, key: NurseryKey) -> str:
        """Why a worker cannot come from there now; empty if it can."""
        nursery = self._all.get(key)
        if nursery is None:
            return self._refused.get(key, "its nursery has gone")
        return "" if nursery.warm else nursery.why or "its nursery is not warm"

    def order(
        self, key: NurseryKey, attempt_id: str, order: dict[str, Any], descriptors: list[int]
    ) -> bool:
        """Hand the order for an attempt to a warm nursery; False if it has gone."""
        nursery = self._all.get(key)
        if nursery is None or not nursery.warm:
            return False
        nursery.used = time.monotonic()
        if not packets.send(nursery.link, order, descriptors):
            return False
        nursery.attempts.add(attempt_id)
        return True

    def is_stopped(self, key: NurseryKey) -> bool:
        """Whether somebody has stopped this nursery with a signal."""
        nursery = self._all.get(key)
        return nursery is not None and nursery.warm and process_tree.is_stopped(nursery.pid)

    def give_up(self, key: NurseryKey, stopped: bool) -> None:
        """A start that was ordered there has not come. One that somebody has stopped is replaced;
        one that hangs is not tried again for a while."""
        nursery = self._all.get(key)
        if nursery is None or not nursery.warm:
            return
        nursery.process.kill()
        if stopped:
            self._drop(nursery)
            self._changed()
        else:
            nursery.failed_births = TRIES
            self._off(nursery, f"it did not answer; see {self._log}")

    def born(self, key: NurseryKey) -> None:
        """Note that a worker of this nursery has begun."""
        if (nursery := self._all.get(key)) is not None:
            nursery.failed_births, nursery.useful = 0, True
            self._useless.pop(key, None)

    def birth_failed(self, key: NurseryKey) -> None:
        """A worker from there has ended before it began. Of its own accord, as far as we know:
        after a few of these, programs are started cold for a while."""
        nursery = self._all.get(key)
        if nursery is None:
            return
        nursery.failed_births += 1
        if nursery.failed_births >= TRIES and nursery.state != "off":
            self._off(nursery, f"{TRIES} workers in a row ended before they began; see {self._log}")

    def close(self) -> None:
        """End them all and see them go: they do when their link is gone."""
        nurseries = self._living()
        for nursery in nurseries:
            self._drop(nursery)
        deadline = time.monotonic() + _GOODBYE
        for nursery in nurseries:
            try:
                nursery.process.returncode = None
                nursery.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                nursery.process.kill()

    def _living(self) -> list[Nursery]:
        return [nursery for nursery in self._all.values() if nursery.state != "off"]

    @property
    def _expected(self) -> int:
        """What one more is going to hold."""
        return self._largest or USUAL

    def _start(self, key: NurseryKey, room: Callable[[], int]) -> Nursery | None:
        living = self._living()
        if len(living) >= MOST:
            long_ago = time.monotonic() - UNWANTED
            idle = [one for one in living if one.useful or (one.warm and one.used < long_ago)]
            if not idle:
                self._refused[key] = "other environments are being loaded"
                return None
            self._drop(min(idle, key=lambda nursery: (bool(nursery.attempts), nursery.used)))
        if room() < self._expected:
            self._refused[key] = _NO_ROOM
            return None
        self._refused.pop(key, None)
        ours, theirs = packets.pair()
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [key.python, "-c", _BOOT, str(theirs.fileno()), self._package, proctitle.ROOM],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                cwd="/",
                env=_environment(key),
                start_new_session=True,
            )
        theirs.close()
        nursery = Nursery(key, process, ours, self._expected)
        self._all[key] = nursery
        self._reactor.watch(ours, lambda: self._receive(nursery))
        self._reactor.call_later(LONGEST_WARM_UP, lambda: self._hurry(nursery))
        return nursery

    def _receive(self, nursery: Nursery) -> None:
        received = packets.receive(nursery.link)
        if received is None:
            self._gone(nursery)
            return
        packet, _ = received
        match packet.get("event"):
            case "warm":
                nursery.state, nursery.used = "warm", time.monotonic()
                nursery.tensorflow = packet["tensorflow"]
                nursery.packages = packet["packages"]
                self._know(nursery.key.python, packet["variables"], packet["written"])
                nursery.holds = process_tree.shared_memory(nursery.pid)
                self._largest = max(self._largest, nursery.holds)
                self._changed()
            case "off":
                nursery.packages = packet.get("packages", {})
                self._off(nursery, packet["why"])

    def _know(self, python: str, read: list[str], written: dict[str, str]) -> None:
        """Take in which variables count for programs of this interpreter."""
        other = import_variables.AGAIN | import_variables.HARMLESS
        counts = {name for name in read if name not in other and not name.startswith("PYTHON")}
        known = self._known.get(python, Packages())
        self._known[python] = Packages(known.reads | counts, known.sets | written)

    def _gone(self, nursery: Nursery) -> None:
        """It has ended. One that was warm is started again when it is wanted, the others at once;
        but not for ever, if none of them is of use."""
        self._drop(nursery)
        if not nursery.useful:
            self._useless[nursery.key] = ended = self._useless.get(nursery.key, 0) + 1
            if ended >= TRIES:
                when = "before a worker came from it" if nursery.warm else "while warming up"
                nursery.failed_births = TRIES
                self._off(nursery, f"the nursery ended {when}, again and again")
                return
        if nursery.warm:
            self._changed()
        else:
            self._start(nursery.key, lambda: nursery.holds)  # The room is still its own.

    def _off(self, nursery: Nursery, why: str) -> None:
        """It lives and must not fork: keep the reason, not the process."""
        self._drop(nursery)
        nursery.state, nursery.why = "off", why
        nursery.off_since = time.monotonic()
        self._all[nursery.key] = nursery
        self._changed()

    def _hurry(self, nursery: Nursery) -> None:
        if nursery.state == "warming up" and self._all.get(nursery.key) is nursery:
            nursery.failed_births = TRIES
            self._off(nursery, f"not warm after {LONGEST_WARM_UP:.0f} s")

    def _drop(self, nursery: Nursery) -> None:
        """Let it go: without its link it ends by itself; one that hangs is helped."""
        self._all.pop(nursery.key, None)
        self._reactor.unwatch(nursery.link)
        nursery.link.close()
        if nursery.state == "warming up":
            nursery.process.kill()
        nursery.process.returncode = 0  # The launcher reaps; Popen is not to wait or warn.
        if nursery.holds:
            self._leaving[nursery.pid] = nursery
            self._settle(nursery)
            self._reactor.call_later(_GOODBYE, lambda: self._kill(nursery))

    def _kill(self, nursery: Nursery) -> None:
        """It was let go long ago: nobody may keep its memory by stopping it."""
        if nursery.pid in self._leaving and not nursery.gone:
            process_tree.send([nursery.pid], signal.SIGKILL)

    def _settle(self, nursery: Nursery) -> None:
        """What a nursery held that was let go is free when it has gone; or when the last but one of
        its programs has: what only one of them has left counts as that one's own."""
        if nursery.gone and len(nursery.attempts) < 2 and nursery.pid in self._leaving:
            del self._leaving[nursery.pid]
            self._changed()


def _environment(key: NurseryKey) -> dict[str, str]:
    """Where a nursery imports: its settings, and nothing else of any client."""
    environ = {
        "PATH": os.defpath,
        "PYTHONPATH": program.BLANK,
        "LANG": "C.UTF-8",
        # An idle thread of OpenBLAS spins for 2^26 cycles by default: a core that neighbours need.
        "OPENBLAS_THREAD_TIMEOUT": "20",
        # Keras imports pandas, and that pyarrow, whose allocator starts a thread: no fork is safe.
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
        **dict(key.settings),
        # More than one thread of OpenBLAS, and no fork is safe; see `inside.threads`.
        "OPENBLAS_NUM_THREADS": "1",
    }
    if home := os.environ.get("SUBLET_HOME"):
        environ["SUBLET_HOME"] = home  # So that anybody can see whose process this is.
    return environ
