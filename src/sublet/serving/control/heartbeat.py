"""Asks an engine how it fares, and ends it if it does not answer or is held up for good.

Owns the asking. What a batch that does not end means is `watchdog`'s to say.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from sublet.errors import ServingError
from sublet.serving.client.engine import EngineProcess
from sublet.serving.control import engine_ends
from sublet.serving.control.blame import Key
from sublet.serving.control.engine_life import EngineLife
from sublet.serving.control.watchdog import Patience, Verdict, Watchdog, WatchedBatch
from sublet.units import format_seconds

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

    async def _until_lost(self) -> "tuple[engine_ends.End, set[Key]] | None":
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
        loads = self._life.loading and not engine_ends.is_stopped(self._worker.pid)
        return _LOADING if loads else 1

    def _silence(self, seconds: float) -> engine_ends.End:
        if engine_ends.is_stopped(self._worker.pid):
            return engine_ends.End("was stopped and did not go on, and was ended", own=False)
        return engine_ends.End(f"did not answer for {format_seconds(seconds)}, and was ended")


def _key(run: WatchedBatch) -> Key:
    return run.model, run.version


def _held_up(verdict: Verdict) -> engine_ends.End:
    span = format_seconds(max(run.holds_up for run in verdict.hung))
    return engine_ends.End(
        f"was held up for {span} by what could not be interrupted, and was ended"
    )
