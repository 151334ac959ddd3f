"""The front-end processes: started, sent the catalogue, restarted when they end, drained."""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from sublet.errors import ServingError, WorldError
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
"""Seconds for a front end to say what it has counted, and between two such questions."""
_HEARING = 10.0
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
"""Large blocks go back to the kernel when they are free. Otherwise the C library keeps them
after the first few, and a client could have hundreds of MiB held for ever."""

Reload = Callable[[messages.Reload | messages.ChangeModel], Awaitable[tuple[int, str]]]
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
        self._update = messages.CatalogueUpdate(Catalogue())
        self._numbers = itertools.count(1)
        self._updating: dict[int, asyncio.Future[Any]] = {}
        """Updates that some front end has not acknowledged, by their numbers."""
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
        self._update = messages.CatalogueUpdate(redacted(catalogue, names), names, silent)
        number = next(self._numbers)
        asked = [one.link.ask(self._update) for one in self._live.values()]
        self._updating[number] = asyncio.gather(*asked, return_exceptions=True)
        self._updating[number].add_done_callback(lambda _: self._updating.pop(number))
        return number

    async def acknowledged(self, number: int) -> None:
        """Until no front end sends calls to what it knew before this update, or one hangs."""
        if (update := self._updating.get(number)) is not None:
            await asyncio.wait([update], timeout=_HEARING)

    async def tally(self) -> Tally:
        """What all have counted, those that have ended included."""
        await asyncio.gather(*(one.count(_TALLY_WAIT) for one in self._live.values()))
        return add([*self._past, *(one.tally for one in self._live.values())])

    async def drain(self, seconds: float) -> bool:
        """Let each answer what it has; whether all did in that time."""
        self._ending = True
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(one.drain(seconds) for one in self._live.values()))
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
        """Ask a front end again and again what it has counted: that much is known if it is killed.
        End one that gives no sign of life, so that another takes its index."""
        beat, most = self._patience.beat or _TALLY_WAIT, self._patience.process
        unanswered = 0.0
        while not most or unanswered < most:
            if await one.count(beat):
                unanswered = 0.0
                await asyncio.sleep(beat)
            else:
                # Counted, not read from a clock: who was stopped itself has waited for nobody.
                unanswered += beat
        self._tell(f"a front end did not answer for {format_seconds(unanswered)}")
        one.kill()

    async def _start(self, index: int) -> "_FrontEnd":
        opening = self._openings[index]
        one = self._live[index] = await _FrontEnd.start(index, opening, self._answer)
        try:
            await one.open(self._update, opening)
        except WorldError:
            self._live.pop(index, None)
            one.kill()
            await one.process.wait()
            raise
        return one

    async def _answer(self, question: messages.Message) -> messages.Message:
        """Answer what a client of a front end wants of the server."""
        match question:
            case messages.Reload() | messages.ChangeModel():
                return messages.Reloaded(*await self._reload(question))
            case messages.AskExposition():
                return messages.Exposition(await self._exposition())
            case _:
                return messages.Statistics((await self.tally()).inferences)


class _FrontEnd:
    """One process, the link to it, and what it has counted."""

    link: messages.Link

    def __init__(self, index: int, process: asyncio.subprocess.Process) -> None:
        self.index = index
        self.process = process
        self.since = asyncio.get_running_loop().time()
        self.tally = Tally()

    @classmethod
    async def start(
        cls,
        index: int,
        opening: messages.Opening,
        answer: Callable[[messages.Message], Awaitable[messages.Message]],
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
        one = cls(index, process)
        # Without the link it cannot be told anything any more.
        one.link = await messages.Link.over(ours, answer, one.kill)
        return one

    async def open(self, update: messages.CatalogueUpdate, opening: messages.Opening) -> None:
        """Have it take requests. Raises why it does not."""
        try:
            async with asyncio.timeout(_STARTING):
                await self.link.ask(update)
                why = (await self.link.ask(opening)).error
        except TimeoutError:
            why = "it does not answer"
        except ServingError:
            why = "it ended"
        if why:
            raise WorldError(f"A front end could not start: {why}.", "See what it wrote above.")

    async def count(self, seconds: float) -> bool:
        """Have its tally fresh; False if it has given no sign of life in that time."""
        try:
            async with asyncio.timeout(seconds):
                self.tally = (await self.link.ask(messages.AskTally())).tally
        except TimeoutError:
            return False
        except ServingError:
            pass  # It has gone.
        return True

    async def drain(self, seconds: float) -> None:
        """Let it answer what it has, and end."""
        with contextlib.suppress(ServingError):
            self.tally = (await self.link.ask(messages.Drain(seconds))).tally
        await self.process.wait()

    def kill(self) -> None:
        # `Process.kill` may reap what has just ended, and asyncio then complains of a lost child.
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
