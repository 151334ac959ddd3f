"""The life of one engine: its heartbeat, what it was busy with, and how it ended.

Tells who sent a signal that no program can catch, and words what the server says of an end. Whom
to blame is `blame`'s to decide, and what a batch that does not end means `watchdog`'s.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sublet.domain.job import Outcome
from sublet.engine.fair_queue import BatchProgress
from sublet.engine.flight_recorder import LARGEST, FlightRecorder
from sublet.errors import ServingError
from sublet.serving.client.engine import EngineProcess
from sublet.serving.control.blame import Key
from sublet.serving.control.watchdog import Findings, Patience, Watchdog
from sublet.units import format_seconds

if TYPE_CHECKING:
    from sublet.wire.messages import Ended

_FROM_OUTSIDE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that no model is the cause of."""
_KERNEL = "/proc/vmstat"
_SILENT = 3
"""Unanswered questions after which an engine is not counted on."""
_LOADING = 4
"""An engine that loads a model may be silent for so many times as long."""


class EngineEnd(NamedTuple):
    """How an engine ended, after the words "The engine"."""

    how: str
    advice: str = ""
    own: bool = True  # Whether something that it ran may be the cause.

    def text(self, loading: Iterable[Key], running: Iterable[Key]) -> str:
        """The line for the server's log; `loading` and `running` are what it was busy with."""
        what = [f" while it loaded {name} {number}" for name, number in loading]
        what += [f" while it ran {name} {number}" for name, number in running]
        return f"The engine {self.how}{','.join(what)}.{self.advice}"


class EngineLife:
    """One engine from its start to its end; used in the event loop."""

    def __init__(self, recorder: FlightRecorder) -> None:
        self.recorder = recorder
        self.ended = asyncio.Event()
        self.noted = asyncio.Event()  # Set when the reconciler knows of the end.
        self.cause = "The engine has ended."
        self.running: tuple[Key, ...] = ()
        """What it ran when it ended, unless somebody else ended it."""
        self._loading: dict[Key, None] = {}
        self._condemned: EngineEnd | None = None  # Why the server itself ends it, if it does.
        self._hung: set[Key] = set()
        self._numbers: dict[Key, int] = {}
        self._oom_kills = oom_kills()

    @property
    def loading(self) -> tuple[Key, ...]:
        """What it loads; at its end nothing, if somebody else ended it."""
        return tuple(self._loading)

    def number(self, key: Key) -> int:
        """The number of this version in the flight recorder; 0 if there were too many."""
        if key not in self._numbers and len(self._numbers) < LARGEST:
            self._numbers[key] = len(self._numbers) + 1
        return self._numbers.get(key, 0)

    def hear(self, event: dict[str, Any]) -> None:
        key = (str(event.get("model")), int(event.get("version") or 0))
        if event.get("event") == "loading":
            self._loading[key] = None
        else:
            self._loading.pop(key, None)

    def condemn(self, end: EngineEnd, hung: Collection[Key] = ()) -> None:
        """The server is about to end it; `hung` are the cause, or else all that it runs."""
        self._condemned, self._hung = end, set(hung)

    def end(self, outcome: "Ended | None") -> None:
        end = self._condemned
        if end is None and outcome is not None:
            end = judge(outcome.outcome, self._oom_kills, oom_kills())
        if end is not None:
            if end.own:
                ran = self.recorder.running()
                found = tuple(key for key, n in self._numbers.items() if n in ran)
                self.running = tuple(sorted(self._hung)) or found
            self.cause = end.text(self._loading, self.running)
            if not end.own:
                self._loading.clear()
        self.ended.set()


class Heartbeat:
    """Asks one engine how it fares, and ends it if it does not answer or is held up for good.
    `on_silence` is called with whether it is silent, whenever that may have changed."""

    def __init__(
        self,
        process: EngineProcess,
        life: EngineLife,
        patience: Patience,
        tell: Callable[[str], None],
        on_silence: Callable[[bool], None],
    ) -> None:
        self._process = process
        self._life = life
        self._patience = patience
        self._tell = tell
        self._on_silence = on_silence
        # One of its own: others wait for loads.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sublet-heartbeat")

    async def watch(self) -> None:
        """Watch until the engine has ended, by itself or because of this."""
        if not self._patience.process:
            return
        try:
            end = await self._until_lost()
            if end is not None:
                self._life.condemn(*end)
                self._process.kill()
        finally:
            self._thread.shutdown(wait=False)

    async def _until_lost(self) -> "tuple[EngineEnd, set[Key]] | None":
        """Why it has to be ended, and which models are the cause; None if it has ended."""
        watchdog = Watchdog(self._patience)
        loop = asyncio.get_running_loop()
        unanswered = 0.0
        while not self._process.client.closed:
            try:
                runs = await self._ask({"ask": "pulse"})
            except ServingError:
                # Counted, and not read from a clock: who was stopped itself has waited for nobody.
                unanswered += self._patience.beat
                if unanswered >= _SILENT * self._patience.beat:
                    self._on_silence(True)
                if unanswered >= self._patience.process * self._slack():
                    return self._silence(unanswered), set()
                continue
            unanswered = 0.0
            findings = watchdog.judge(msgspec.convert(runs, list[BatchProgress]), loop.time())
            self._on_silence(findings.stalled)
            await self._interrupt(findings.interrupt)
            if findings.hung:
                return _held_up(findings), {_key(run) for run in findings.hung}
            await asyncio.sleep(self._patience.beat)
        return None

    async def _interrupt(self, runs: Sequence[BatchProgress]) -> None:
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
        ask = self._process.client.ask
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, ask, question, self._patience.beat)

    def _slack(self) -> int:
        # Large graphs are read with the interpreter's lock held.
        loads = self._life.loading and not is_stopped(self._process.pid)
        return _LOADING if loads else 1

    def _silence(self, seconds: float) -> EngineEnd:
        if is_stopped(self._process.pid):
            return EngineEnd("was stopped and did not go on, and was ended", own=False)
        return EngineEnd(f"did not answer for {format_seconds(seconds)}, and was ended")


def is_stopped(pid: int | None) -> bool:
    """Whether SIGSTOP or a debugger has stopped this process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


def oom_kills() -> int | None:
    """How many processes the kernel has killed for want of memory; None if it does not say."""
    try:
        with open(_KERNEL, encoding="ascii") as file:
            return int(dict(line.split() for line in file)["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None


def judge(outcome: Outcome, before: int | None, after: int | None) -> EngineEnd:
    """`before` and `after` are the kernel's kills when the engine began, and when it had ended."""
    if outcome.cause == "exited":
        return EngineEnd(f"ended with code {outcome.code}")
    if outcome.cause != "signalled":
        return EngineEnd(f"ended ({outcome.cause})", own=outcome.cause == "lease exceeded")
    number = outcome.code - 128
    if number != signal.SIGKILL:
        return EngineEnd(f"ended ({_signal_name(number)})", own=number not in _FROM_OUTSIDE)
    advice = (
        " See dmesg; if it was that, have the machine do less at a time, or serve with less: "
        "lower --memory."
    )
    if before is None or after is None:
        how = "was killed (signal 9), perhaps by the kernel for lack of memory"
        return EngineEnd(how, advice, own=False)
    if before == after:
        return EngineEnd("was killed (signal 9) by somebody", own=False)
    return EngineEnd("was killed (signal 9), it seems by the kernel for lack of memory", advice)


def _signal_name(number: int) -> str:
    try:
        return f"signal {number}, {signal.Signals(number).name}"
    except ValueError:
        return f"signal {number}"


def _key(run: BatchProgress) -> Key:
    return run.model, run.version


def _held_up(findings: Findings) -> EngineEnd:
    span = format_seconds(max(run.holds_up for run in findings.hung))
    return EngineEnd(f"was held up for {span} by what could not be interrupted, and was ended")
