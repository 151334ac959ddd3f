"""Places for engines: each has one engine, and starts another when it ends.

What a new engine is to have is the stock's to say.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from sublet.engine.flight_recorder import FlightRecorder
from sublet.errors import BadRequest, ServingError, SubletError, TooLarge
from sublet.serving.catalogue import Signature
from sublet.serving.client.engine import EngineProcess
from sublet.serving.control.engine_life import EngineLife, Heartbeat
from sublet.serving.control.reconciler import Reconciler
from sublet.serving.control.replicas import EngineLost
from sublet.serving.control.watchdog import Patience
from sublet.serving.metrics import Row
from sublet.serving.output_relay import OutputRelay

if TYPE_CHECKING:
    from sublet.domain.lease import Lease
    from sublet.wire.messages import Ended

_LONG_ENOUGH = 10.0
"""Seconds that an engine must have lived for the next one to start at once."""
_LONGEST_PAUSE = 30.0
_ANSWERING = 30.0
"""Seconds for what was asked of a version before it is taken away."""
_LOOK = 0.02
_OUT = {"known": "unloaded", "ready": "loaded"}
"""Words of the engine for whoever looks from outside."""


class EngineSupervisor:
    """One place; a `Host` for the stock."""

    def __init__(
        self,
        name: str,
        memory: str,
        device: str | None,
        stock: Reconciler,
        tell: Callable[[str], None],
        whose: str,
        site: str,
        batches: int,
        patience: Patience,
        changed: Callable[[], None],
    ) -> None:
        self.site = site
        self.path = ""
        self.silent = False
        """Whether its engine gives no answers; `changed` is called when that changes."""
        self.turn = asyncio.Lock()
        self.restarts = 0
        self._name = name
        self._memory = memory
        self._device = device
        self._stock = stock
        self._tell = tell
        self._whose = whose
        """Who needs so much memory, with the verb; empty if a user has said how much."""
        self._batches = batches
        """That may run at a time; 0 leaves it to the engine."""
        self._patience = patience
        self._changed = changed
        self._worker: EngineProcess | None = None
        self._life: EngineLife | None = None
        self._there = asyncio.Event()
        """Set when there is an engine, or can be none."""
        self._refusal: BadRequest | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._closed = False
        # A load blocks its thread; questions must not wait for it.
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="sublet-slot")

    @property
    def lease(self) -> "Lease | None":
        """Of its engine, once that has one."""
        return None if self._worker is None else self._worker.lease

    async def start(self) -> None:
        """Have the first engine. Raises what keeps it from starting."""
        await self._begin()
        self._keeping = asyncio.create_task(self._keep())

    async def start_anyhow(self) -> None:
        """The same for an engine that is wanted while others serve: it is tried until it works."""
        self._keeping = asyncio.create_task(self._keep())

    async def ready(self) -> None:
        """As `Host.ready`."""
        await self._there.wait()
        if self._refusal is not None:
            raise self._refusal

    async def add(
        self, name: str, number: int, path: str, options: Mapping[str, Any], suspect: float
    ) -> None:
        """As `Host.add`."""
        told = {"model": name, "version": number, "path": path, "options": dict(options)}
        noted = 0 if self._life is None else self._life.number((name, number))
        await self._ask({"ask": "add", **told, "number": noted, "suspect": suspect})

    async def load(self, name: str, number: int) -> Mapping[str, Signature]:
        """As `Host.load`."""
        told = await self._ask({"ask": "load", "model": name, "version": number})
        return msgspec.convert(told["signatures"], dict[str, Signature])

    async def full(self) -> bool:
        """As `Host.full`: somebody had to make room for somebody."""
        return any(row.evictions for row in await self.rows())

    async def unload(self, name: str, number: int) -> None:
        """As `Host.unload`."""
        await self._ask({"ask": "retire", "model": name, "version": number})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ANSWERING):
                while await self._busy(name, number):
                    await asyncio.sleep(_LOOK)
        await self._ask({"ask": "forget", "model": name, "version": number})

    async def rows(self) -> list[Row]:
        """What its engine says about its models; nothing while there is none that answers."""
        if not self.path or self.silent:
            return []
        try:
            told = await self._ask({"ask": "models"})
        except (EngineLost, ServingError):
            return []
        return [row(one, self.path, self.site) for one in told]

    async def close(self, at_once: bool = False) -> None:
        """End its engine, by force if it may not take its time, and start no other."""
        self._closed = True
        self.path = ""
        # Whoever waits for it is not to wait for ever.
        self._refusal = BadRequest("Its engine was given up: no model is to be there.")
        self._there.set()
        if self._keeping is not None:
            self._keeping.cancel()
        if self._worker is not None:
            if at_once:
                self._worker.kill()
            await asyncio.to_thread(self._worker.close)
        self._threads.shutdown(wait=False)
        if self._life is not None:
            self._life.noted.set()  # Nor whoever waits for an answer.

    async def _busy(self, name: str, number: int) -> bool:
        told = await self._ask({"ask": "models"})
        return any(
            one["waiting"] or one["running"]
            for one in told
            if (one["model"], one["version"]) == (name, number)
        )

    async def _ask(self, question: dict[str, Any]) -> Any:
        worker, life = self._worker, self._life
        if worker is None or life is None or not self.path:
            raise EngineLost("There is no engine.")
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, worker.line.ask, question)
        except ServingError:
            if not worker.line.closed:
                raise
        # Whoever hears of the end must find it noted already.
        await life.noted.wait()
        raise EngineLost(life.cause)

    async def _keep(self) -> None:
        pause = 0.0
        loop = asyncio.get_running_loop()
        while not self._closed:
            if self._life is not None:
                life, began = self._life, loop.time()
                assert self._worker is not None
                await self._until_ended(self._worker, life)
                self._there.clear()
                path, self.path = self.path, ""
                if self._closed:
                    life.noted.set()
                    return
                where = f"{self.site}: " if self.site else ""
                self._tell(f"{where}{life.cause} It is started again.")
                self._stock.away(self, path, life.loading, life.running)
                life.noted.set()
                self.restarts += 1
                if loop.time() - began > _LONG_ENOUGH:
                    pause = 0.0
            try:
                await asyncio.sleep(pause)
                await self._begin()
            except (SubletError, OSError) as error:
                self._tell(f"an engine cannot be started: {error}")
                self._life = None
                if isinstance(error, BadRequest):
                    self._refusal = error
                    self._there.set()
            else:
                # In the background: the next engine may end as well.
                self._stock.back_soon(self)
            pause = min(_LONGEST_PAUSE, 2 * pause + 0.1)

    async def _until_ended(self, worker: EngineProcess, life: EngineLife) -> None:
        """Until the engine has ended. Meanwhile it is asked how it fares."""
        pulse = Heartbeat(worker, life, self._patience, self._tell, self._note_silence)
        feeling = asyncio.create_task(pulse.feel())
        try:
            await life.ended.wait()
        finally:
            feeling.cancel()
            await asyncio.gather(feeling, return_exceptions=True)
            self._note_silence(False)

    def _note_silence(self, silent: bool) -> None:
        if silent != self.silent:
            self.silent = silent
            self._changed()

    async def _begin(self) -> None:
        """Start an engine; returns when it answers."""
        loop = asyncio.get_running_loop()
        life = EngineLife(FlightRecorder())

        def ended(outcome: "Ended | None") -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody minds.
                loop.call_soon_threadsafe(life.end, outcome)

        def start() -> EngineProcess:
            output = OutputRelay()
            try:
                worker = self._worker = EngineProcess(
                    self._memory,
                    self._device,
                    self._batches,
                    name=self._name,
                    told=self._waits,
                    ended=ended,
                    notes=life.notes,
                    output=output,
                )
            except BaseException:
                output.close()
                raise
            if self._closed:
                worker.close()  # Whoever closed this slot has not seen it.
            return worker

        worker = await loop.run_in_executor(self._threads, start)
        worker.line.told = lambda event: _call_soon(loop, life.hear, event)
        try:
            await loop.run_in_executor(self._threads, worker.wait)
        except TooLarge as error:
            if self._whose:
                raise TooLarge(
                    f"{self._whose} about {self._memory}. {error.message}",
                    f"Say --memory: models are then loaded when they are called. {error.hint}",
                ) from None
            raise
        worker.line.listen()
        self._life = life
        self.path = worker.path
        self._refusal = None
        self._there.set()

    def _waits(self, reason: str) -> None:
        if reason:
            self._tell(f"waiting: {reason}")


def row(told: Mapping[str, Any], engine: str, device: str) -> Row:
    """What an engine on this device says about one version, as a record."""
    idle, loads = told.get("idle"), int(told.get("loads") or 0)
    state = str(told.get("state") or "known")
    return Row(
        model=str(told["model"]),
        version=int(told["version"]),
        engine=engine,
        state="loaded" if told.get("loaded") else _OUT.get(state, state),
        bytes=int(told.get("bytes") or 0),
        load_seconds=float(told.get("load_seconds") or 0.0),
        loads=loads,
        evictions=loads - bool(told.get("loaded")) if loads else 0,
        requests=int(told.get("requests") or 0),
        waiting=int(told.get("waiting") or 0),
        idle=None if idle is None else float(idle),
        pinned=bool(told.get("pinned")),
        device=device,
    )


def _call_soon(loop: asyncio.AbstractEventLoop, act: Callable[..., None], *args: Any) -> None:
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(act, *args)
