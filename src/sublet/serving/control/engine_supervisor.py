"""Supervises one engine: starts it, asks it about its models, and starts another when it ends.

What a new engine is to load, the reconciler decides.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from sublet.engine.flight_recorder import FlightRecorder
from sublet.engine.savedmodel_proto import Signature
from sublet.errors import BadRequest, ServingError, SubletError, TooLarge
from sublet.serving.client.engine import EngineProcess
from sublet.serving.control.engine_life import EngineLife, Heartbeat
from sublet.serving.control.reconciler import Reconciler
from sublet.serving.control.supervised_engine import EngineLost
from sublet.serving.control.watchdog import Patience
from sublet.serving.metrics import Row
from sublet.serving.output_relay import OutputRelay

if TYPE_CHECKING:
    from sublet.domain.lease import Lease
    from sublet.wire.messages import Ended

_LONG_ENOUGH = 10.0
"""Seconds that an engine must have lived for the next one to start at once."""
_LONGEST_PAUSE = 30.0
_UNLOADING = 30.0
"""Seconds for the requests of a version to be answered before it is taken away."""
_LOOK = 0.02


class EngineSupervisor:
    """A `SupervisedEngine` for the reconciler, with one engine after the other behind it.

    `needs` says in an error who needs so much memory; empty if a user has said how much.
    `batches` may run at a time; 0 leaves that to the engine. `on_change` is called when `silent`
    changes.
    """

    def __init__(
        self,
        name: str,
        memory: str,
        device: str | None,
        reconciler: Reconciler,
        tell: Callable[[str], None],
        needs: str,
        device_name: str,
        batches: int,
        patience: Patience,
        on_change: Callable[[], None],
    ) -> None:
        self.device = device_name
        self.path = ""
        self.silent = False  # Whether its engine does not answer.
        self.load_lock = asyncio.Lock()
        self.restarts = 0
        self._name = name
        self._memory = memory
        self._asked_device = device
        self._reconciler = reconciler
        self._tell = tell
        self._needs = needs
        self._batches = batches
        self._patience = patience
        self._on_change = on_change
        self._process: EngineProcess | None = None
        self._life: EngineLife | None = None
        self._settled = asyncio.Event()
        """Set when there is an engine, or can be none."""
        self._refusal: BadRequest | None = None
        self._supervising: asyncio.Task[None] | None = None
        self._closed = False
        # A load blocks its thread; questions must not wait for it.
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="sublet-engine-calls")

    @property
    def lease(self) -> "Lease | None":
        return None if self._process is None else self._process.lease

    async def start(self) -> None:
        """Start the first engine. Raises what keeps it from starting."""
        await self._start_engine()
        self.start_in_background()

    def start_in_background(self) -> None:
        """Start an engine while others serve: it is tried until it works."""
        self._supervising = asyncio.create_task(self._supervise())

    async def ready(self) -> None:
        await self._settled.wait()
        if self._refusal is not None:
            raise self._refusal

    async def add(
        self, name: str, number: int, path: str, options: Mapping[str, Any], suspect: float
    ) -> None:
        question = {"model": name, "version": number, "path": path, "options": dict(options)}
        recorded = 0 if self._life is None else self._life.number((name, number))
        await self._ask({"ask": "add", **question, "number": recorded, "suspect": suspect})

    async def load(self, name: str, number: int) -> Mapping[str, Signature]:
        answer = await self._ask({"ask": "load", "model": name, "version": number})
        return msgspec.convert(answer["signatures"], dict[str, Signature])

    async def full(self) -> bool:
        return any(row.evictions for row in await self.rows())

    async def unload(self, name: str, number: int) -> None:
        await self._ask({"ask": "retire", "model": name, "version": number})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_UNLOADING):
                while await self._is_busy(name, number):
                    await asyncio.sleep(_LOOK)
        await self._ask({"ask": "forget", "model": name, "version": number})

    async def rows(self) -> list[Row]:
        """What the engine reports about its models; nothing while none answers."""
        if not self.path or self.silent:
            return []
        try:
            reports = await self._ask({"ask": "models"})
        except (EngineLost, ServingError):
            return []
        return [Row.read(one, self.path, self.device) for one in reports]

    async def close(self, at_once: bool = False) -> None:
        """End the engine, by force if it may not take its time, and start no other."""
        self._closed = True
        self.path = ""
        # Whoever waits for it is not to wait for ever.
        self._refusal = BadRequest("Its engine was given up: no model is to be there.")
        self._settled.set()
        if self._supervising is not None:
            self._supervising.cancel()
        if self._process is not None:
            if at_once:
                self._process.kill()
            await asyncio.to_thread(self._process.close)
        self._threads.shutdown(wait=False)
        if self._life is not None:
            self._life.noted.set()  # Nor whoever waits for an answer.

    async def _is_busy(self, name: str, number: int) -> bool:
        reports = await self._ask({"ask": "models"})
        return any(
            one["waiting"] or one["running"]
            for one in reports
            if (one["model"], one["version"]) == (name, number)
        )

    async def _ask(self, question: dict[str, Any]) -> Any:
        process, life = self._process, self._life
        if process is None or life is None or not self.path:
            raise EngineLost("There is no engine.")
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, process.client.ask, question)
        except ServingError:
            if not process.client.closed:
                raise
        # Whoever hears of the end must find it noted already.
        await life.noted.wait()
        raise EngineLost(life.cause)

    async def _supervise(self) -> None:
        pause = 0.0
        loop = asyncio.get_running_loop()
        while not self._closed:
            if self._life is not None:
                life, began = self._life, loop.time()
                assert self._process is not None
                await self._until_ended(self._process, life)
                self._settled.clear()
                path, self.path = self.path, ""
                if self._closed:
                    life.noted.set()
                    return
                where = f"{self.device}: " if self.device else ""
                self._tell(f"{where}{life.cause} It is started again.")
                self._reconciler.engine_ended(self, path, life.loading, life.running)
                life.noted.set()
                self.restarts += 1
                if loop.time() - began > _LONG_ENOUGH:
                    pause = 0.0
            try:
                await asyncio.sleep(pause)
                await self._start_engine()
            except (SubletError, OSError) as error:
                self._tell(f"an engine cannot be started: {error}")
                self._life = None
                if isinstance(error, BadRequest):
                    self._refusal = error
                    self._settled.set()
            else:
                # In the background: the next engine may end as well.
                self._reconciler.engine_started_soon(self)
            pause = min(_LONGEST_PAUSE, 2 * pause + 0.1)

    async def _until_ended(self, process: EngineProcess, life: EngineLife) -> None:
        """Wait for the engine's end; meanwhile its heartbeat is watched."""
        heartbeat = Heartbeat(process, life, self._patience, self._tell, self._note_silence)
        watching = asyncio.create_task(heartbeat.watch())
        try:
            await life.ended.wait()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            self._note_silence(False)

    def _note_silence(self, silent: bool) -> None:
        if silent != self.silent:
            self.silent = silent
            self._on_change()

    async def _start_engine(self) -> None:
        """Start an engine; returns when it answers."""
        loop = asyncio.get_running_loop()
        life = EngineLife(FlightRecorder())

        def call_soon(act: Callable[..., None], *args: Any) -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody minds.
                loop.call_soon_threadsafe(act, *args)

        def on_end(outcome: "Ended | None") -> None:
            call_soon(life.end, outcome)

        def start() -> EngineProcess:
            output = OutputRelay()
            try:
                process = self._process = EngineProcess(
                    self._memory,
                    self._asked_device,
                    self._batches,
                    name=self._name,
                    on_wait=self._tell_waiting,
                    on_end=on_end,
                    recorder=life.recorder,
                    output=output,
                )
            except BaseException:
                output.close()
                raise
            if self._closed:
                process.close()  # `close` has not seen it.
            return process

        process = await loop.run_in_executor(self._threads, start)
        process.client.on_event = lambda event: call_soon(life.hear, event)
        try:
            await loop.run_in_executor(self._threads, process.wait)
        except TooLarge as error:
            if self._needs:
                raise TooLarge(
                    f"{self._needs} about {self._memory}. {error.message}",
                    f"Say --memory: models are then loaded when they are called. {error.hint}",
                ) from None
            raise
        process.client.listen()
        self._life = life
        self.path = process.path
        self._refusal = None
        self._settled.set()

    def _tell_waiting(self, reason: str) -> None:
        if reason:
            self._tell(f"waiting: {reason}")
