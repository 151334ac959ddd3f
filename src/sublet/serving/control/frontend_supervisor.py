"""The front-end processes: started, sent the catalogue, restarted when they end, drained."""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable

from sublet.errors import WorldError
from sublet.serving import frontend_link as messages
from sublet.serving.catalogue import Catalogue
from sublet.serving.control.watchdog import Patience
from sublet.serving.metrics import Tally, add
from sublet.serving.redaction import redacted
from sublet.units import format_seconds

_LONG_ENOUGH = 5.0
"""Seconds that a front end must have lived for its successor to start at once."""
_LONGEST_PAUSE = 5.0
_STARTING = 120.0
"""Seconds in which a new one has to take requests."""
_TALLY_WAIT = 1.0
_HEARING = 10.0
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
"""Large blocks go back to the kernel when they are free. Otherwise the C library keeps them
after the first few, and a client could have hundreds of MiB held for ever."""

Reload = Callable[[bytes], Awaitable[tuple[int, str]]]
Exposition = Callable[[], Awaitable[str]]


class FrontEnds:
    """All front ends of a server, each started with its own opening. `reload` and `exposition`
    do what clients ask of the server."""

    def __init__(
        self,
        openings: list[messages.Opening],
        reload: Reload,
        exposition: Exposition,
        patience: Patience,
        tell: Callable[[str], None],
    ) -> None:
        self.restarts = 0
        self._patience = patience
        self._tell = tell
        self._openings = openings
        self._reload = reload
        self._exposition = exposition
        self._catalogue = Catalogue()
        self._names: dict[str, str] = {}
        self._silent: tuple[str, ...] = ()
        self._number = 0
        self._numbers = itertools.count(1)
        self._live: dict[int, _FrontEnd] = {}
        self._past: list[Tally] = []
        self._keeping: list[asyncio.Task[None]] = []
        self._ending = False

    async def start(self) -> None:
        """Start all of them; returns when each takes requests, and raises why one does not."""
        started = [self._start(index) for index in range(len(self._openings))]
        for one in await asyncio.gather(*started):
            self._keeping.append(asyncio.create_task(self._keep(one)))

    def publish(self, catalogue: Catalogue, names: dict[str, str], silent: tuple[str, ...]) -> int:
        """Send the catalogue, the models' directories and the silent engines; the number of this
        update."""
        self._catalogue, self._names, self._silent = redacted(catalogue, names), names, silent
        self._number += 1
        for one in self._live.values():
            one.link.send(self._update())
        return self._number

    async def acknowledged(self, number: int) -> None:
        """Until no front end sends calls to what it knew before this news, or one hangs."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HEARING):
                await asyncio.gather(
                    *(one.acknowledged(number) for one in list(self._live.values()))
                )

    async def tally(self) -> Tally:
        """What all have counted, those that have ended included."""
        asked = [one.count(next(self._numbers)) for one in list(self._live.values())]
        await asyncio.gather(*asked)
        return add([*self._past, *(one.tally for one in self._live.values())])

    async def drain(self, seconds: float) -> bool:
        """Let each answer what it has; whether all did in that time."""
        self._ending = True
        for one in self._live.values():
            one.link.send(messages.Drain(seconds))
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(one.process.wait() for one in self._live.values()))
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """End all front ends at once."""
        self._ending = True
        for one in self._live.values():
            one.kill()
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*(one.process.wait() for one in list(self._live.values())))
        self._live.clear()

    async def _keep(self, one: "_FrontEnd") -> None:
        """Have a front end in this index as long as the server lives."""
        pause = 0.0
        while True:
            watching = asyncio.create_task(self._watch(one))
            code = await one.process.wait()
            watching.cancel()
            self._past = [add([*self._past, one.tally])]
            self._live.pop(one.index, None)
            if self._ending:
                return
            self.restarts += 1
            self._tell(f"a front end has ended ({code}); starting another")
            lived = asyncio.get_running_loop().time() - one.since
            pause = 0.0 if lived > _LONG_ENOUGH else min(_LONGEST_PAUSE, 2 * pause + 0.05)
            while True:
                await asyncio.sleep(pause)
                try:
                    one = await self._start(one.index)
                    break
                except (WorldError, OSError) as error:
                    self._tell(str(error))
                    pause = min(_LONGEST_PAUSE, 2 * pause + 0.05)

    async def _watch(self, one: "_FrontEnd") -> None:
        """End a front end that gives no sign of life, so that another takes its index."""
        unanswered = 0.0
        while self._patience.process and unanswered < self._patience.process:
            if await one.answers(self._patience.beat):
                unanswered = 0.0
                await asyncio.sleep(self._patience.beat)
            else:
                # Counted, not read from a clock: who was stopped itself has waited for nobody.
                unanswered += self._patience.beat
        if self._patience.process:
            self._tell(f"a front end did not answer for {format_seconds(unanswered)}")
            one.kill()

    async def _start(self, index: int) -> "_FrontEnd":
        one = await _FrontEnd.start(index, self._openings[index], self._asked)
        self._live[index] = one
        one.link.send(self._update())
        try:
            await one.ready()
        except WorldError:
            self._live.pop(index, None)
            one.kill()
            await one.process.wait()
            raise
        return one

    def _update(self) -> messages.CatalogueUpdate:
        return messages.CatalogueUpdate(self._number, self._catalogue, self._names, self._silent)

    async def _asked(self, one: "_FrontEnd", message: messages.Asked) -> None:
        if isinstance(message, messages.Reload):
            code, error = await self._reload(message.config)
            one.link.send(messages.Reloaded(message.number, code, error))
        elif isinstance(message, messages.AskExposition):
            one.link.send(messages.Exposition(message.number, await self._exposition()))
        else:
            one.link.send(messages.Statistics(message.number, (await self.tally()).inferences))


class _FrontEnd:
    """One process, and what was heard from it."""

    link: messages.Link

    def __init__(
        self,
        index: int,
        process: asyncio.subprocess.Process,
        asked: Callable[["_FrontEnd", messages.Asked], Awaitable[None]],
    ) -> None:
        self.index = index
        self.process = process
        self.since = asyncio.get_running_loop().time()
        self.tally = Tally()
        self._asked = asked
        self._error: str | None = None
        self._ready = False
        self._number = -1
        self._counted = 0
        self._pinged = False
        """Whether it was asked for a sign of life, and has given none."""
        self._gone = False
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(
        cls,
        index: int,
        opening: messages.Opening,
        asked: Callable[["_FrontEnd", messages.Asked], Awaitable[None]],
    ) -> "_FrontEnd":
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # A module of the user's directory is not ours to import.
                "-m",
                "sublet.serving.frontend.process",
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(), *opening.rest, *opening.grpc),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                env=_MALLOC | os.environ,
            )
        one = cls(index, process, asked)
        one.link = await messages.Link.over(ours, messages.FromFrontEnd, one._heard, one._lost)
        one.link.send(opening)
        return one

    async def ready(self) -> None:
        """Wait until it takes requests. Raises why it does not."""
        why = "it ended"
        try:
            async with asyncio.timeout(_STARTING):
                await self._until(lambda: self._ready or self._error is not None)
        except TimeoutError:
            why = "it does not answer"
        if not self._ready:
            raise WorldError(
                f"A front end could not start: {self._error or why}.", "See what it wrote above."
            )

    async def acknowledged(self, number: int) -> None:
        """Wait until it knows this update, or has gone."""
        await self._until(lambda: self._number >= number)

    async def answers(self, seconds: float) -> bool:
        """Whether it gives a sign of life in that time, or has gone."""
        if not self._pinged:
            self._pinged = True
            self.link.send(messages.Ping())
        try:
            await asyncio.wait_for(self._until(lambda: not self._pinged), seconds)
        except TimeoutError:
            return False
        return True

    async def count(self, number: int) -> None:
        """Until its tally is fresh, has not come for a while, or it has gone."""
        self.link.send(messages.AskTally(number))
        try:
            await asyncio.wait_for(self._until(lambda: self._counted >= number), _TALLY_WAIT)
        except TimeoutError:
            return

    def kill(self) -> None:
        # `Process.kill` may reap what has just ended, and asyncio then complains of a lost child.
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition() and not self._gone:
            self._changed.clear()
            await self._changed.wait()

    def _heard(self, message: messages.FromFrontEnd) -> None:
        match message:
            case messages.Ready():
                self._ready = True
            case messages.Failed(error):
                self._error = error
            case messages.Pong():
                self._pinged = False
            case messages.Acknowledged(number):
                self._number = max(self._number, number)
            case messages.Counted(number, tally):
                self.tally = tally
                self._counted = max(self._counted, number)
            case messages.Reload() | messages.AskExposition() | messages.AskStatistics():
                task = asyncio.create_task(self._answer(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        self._changed.set()

    async def _answer(self, message: messages.Asked) -> None:
        await self._asked(self, message)

    def _lost(self) -> None:
        self._gone = True
        self._changed.set()
        # It cannot be told anything any more.
        self.kill()
