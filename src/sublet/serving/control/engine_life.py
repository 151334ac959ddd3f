"""One engine's life, as its slot sees it: what it was busy with, and how it ended."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sublet.domain.job import Outcome
from sublet.engine.flight_recorder import LARGEST, FlightRecorder
from sublet.errors import ServingError
from sublet.serving.client.engine import EngineProcess
from sublet.serving.control.blame import Key
from sublet.serving.control.watchdog import Patience, Verdict, Watchdog, WatchedBatch
from sublet.units import format_seconds

if TYPE_CHECKING:
    from sublet.wire.messages import Ended


_FROM_OUTSIDE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Somebody has ended it: no model is why."""
_KERNEL = "/proc/vmstat"


class End(NamedTuple):
    """How it was."""

    how: str
    """The engine …"""
    advice: str = ""
    own: bool = True
    """Whether something that it ran may be why."""

    def text(self, loading: Iterable[Key], running: Iterable[Key]) -> str:
        """In the server's log; `loading` and `running` are what it was busy with."""
        what = [f" while it loaded {name} {number}" for name, number in loading]
        what += [f" while it ran {name} {number}" for name, number in running]
        return f"The engine {self.how}{','.join(what)}.{self.advice}"


def is_stopped(pid: int | None) -> bool:
    """Whether somebody has stopped this process (SIGSTOP), or a debugger has."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


def oom_kills() -> int | None:
    """How many processes the kernel has ended for want of memory, since the machine was started;
    None if it does not say."""
    try:
        with open(_KERNEL, encoding="ascii") as file:
            told = dict(line.split() for line in file)
        return int(told["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None


def judge(told: Outcome, before: int | None, after: int | None) -> End:
    """`before` and `after` are the kernel's kills when the engine began, and when it had ended."""
    if told.cause == "exited":
        return End(f"ended with code {told.code}")
    if told.cause != "signalled":
        return End(f"ended ({told.cause})", own=told.cause == "lease exceeded")
    number = told.code - 128
    if number != signal.SIGKILL:
        return End(f"ended ({_name(number)})", own=number not in _FROM_OUTSIDE)
    advice = (
        " See dmesg; if it was that, have the machine do less at a time, or serve with less: "
        "lower --memory."
    )
    if before is None or after is None:
        return End("was killed (signal 9), perhaps by the kernel for lack of memory", advice, False)
    if before == after:
        return End("was killed (signal 9) by somebody", own=False)
    return End("was killed (signal 9), it seems by the kernel for lack of memory", advice)


def _name(number: int) -> str:
    try:
        return f"signal {number}, {signal.Signals(number).name}"
    except ValueError:
        return f"signal {number}"


class EngineLife:
    """One engine's, from its start to its end; in the event loop."""

    def __init__(self, notes: FlightRecorder) -> None:
        self.notes = notes
        self.ended = asyncio.Event()
        self.noted = asyncio.Event()
        """Set when the stock knows of its end."""
        self.cause = "The engine has ended."
        self.running: tuple[Key, ...] = ()
        """What it ran when it ended, unless somebody else ended it."""
        self._loading: dict[Key, None] = {}
        self._doom: End | None = None
        """How it is ended by us, if it is."""
        self._hung: set[Key] = set()
        self._numbers: dict[Key, int] = {}
        self._oom_kills = oom_kills()

    @property
    def loading(self) -> tuple[Key, ...]:
        """What it was just loading."""
        return tuple(self._loading)

    def number(self, key: Key) -> int:
        """By which it notes that it runs this version; 0 if there were too many."""
        if key not in self._numbers and len(self._numbers) < LARGEST:
            self._numbers[key] = len(self._numbers) + 1
        return self._numbers.get(key, 0)

    def hear(self, event: dict[str, Any]) -> None:
        """The engine says what it does."""
        key = (str(event.get("model")), int(event.get("version") or 0))
        if event.get("event") == "loading":
            self._loading[key] = None
        else:
            self._loading.pop(key, None)

    def condemn(self, end: End, hung: Collection[Key] = ()) -> None:
        """It is about to be ended, for this reason; these are why, or else all that it runs."""
        self._doom, self._hung = end, set(hung)

    def end(self, outcome: "Ended | None") -> None:
        """It is gone."""
        end = self._doom
        if end is None and outcome is not None:
            end = judge(outcome.outcome, self._oom_kills, oom_kills())
        if end is not None:
            if end.own:
                ran = self.notes.running()
                found = tuple(key for key, n in self._numbers.items() if n in ran)
                self.running = tuple(sorted(self._hung)) or found
            self.cause = end.text(self._loading, self.running)
        self.ended.set()


_SILENT = 3
"""Questions without an answer after which an engine is not counted on."""
_LOADING = 4
"""Times as long is waited for an engine that loads a model."""


class Heartbeat:
    """Of one engine. `noted` is told whether it gives answers, whenever that may have changed."""

    def __init__(
        self,
        worker: EngineProcess,
        life: EngineLife,
        patience: Patience,
        tell: Callable[[str], None],
        noted: Callable[[bool], None],
    ) -> None:
        self._worker = worker
        self._life = life
        self._patience = patience
        self._tell = tell
        self._noted = noted
        # One of its own: others wait for loads.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sublet-pulse")

    async def feel(self) -> None:
        """Until the engine has ended, or was."""
        if not self._patience.process:
            return
        try:
            end = await self._until_lost()
            if end is not None:
                self._life.condemn(*end)
                self._worker.kill()
        finally:
            self._thread.shutdown(wait=False)

    async def _until_lost(self) -> "tuple[End, set[Key]] | None":
        """Why it has to be ended, and which models are to blame; None if it has ended."""
        dog = Watchdog(self._patience)
        loop = asyncio.get_running_loop()
        unanswered = 0.0
        while not self._worker.line.closed:
            try:
                told = await self._ask({"ask": "pulse"})
            except ServingError:
                # Counted, and not read from a clock: who was stopped itself has waited for nobody.
                unanswered += self._patience.beat
                if unanswered >= _SILENT * self._patience.beat:
                    self._noted(True)
                if unanswered >= self._patience.process * self._times():
                    return self._silence(unanswered), set()
                continue
            unanswered = 0.0
            verdict = dog.judge(msgspec.convert(told, list[WatchedBatch]), loop.time())
            self._noted(verdict.stalled)
            await self._interrupt(verdict.interrupt)
            if verdict.hung:
                return _held_up(verdict), {_key(run) for run in verdict.hung}
            await asyncio.sleep(self._patience.beat)
        return None

    async def _interrupt(self, runs: Sequence[WatchedBatch]) -> None:
        for name, number in sorted({_key(run) for run in runs}):
            these = [run for run in runs if _key(run) == (name, number)]
            longest = format_seconds(max(run.seconds for run in these))
            nobody = "" if any(run.wanted for run in these) else "; nobody waits for it any more"
            self._tell(
                f"{name} version {number} has run for {longest} and holds up others{nobody}. "
                "It is interrupted."
            )
            with contextlib.suppress(ServingError):
                await self._ask({"ask": "interrupt", "model": name, "version": number})

    async def _ask(self, question: dict[str, Any]) -> Any:
        ask = self._worker.line.ask
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, ask, question, self._patience.beat)

    def _times(self) -> int:
        """Large graphs are read with the interpreter's lock held."""
        loads = self._life.loading and not is_stopped(self._worker.pid)
        return _LOADING if loads else 1

    def _silence(self, seconds: float) -> End:
        if is_stopped(self._worker.pid):
            return End("was stopped and did not go on, and was ended", own=False)
        return End(f"did not answer for {format_seconds(seconds)}, and was ended")


def _key(run: WatchedBatch) -> Key:
    return run.model, run.version


def _held_up(verdict: Verdict) -> End:
    span = format_seconds(max(run.holds_up for run in verdict.hung))
    return End(f"was held up for {span} by what could not be interrupted, and was ended")
