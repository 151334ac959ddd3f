"""A number of calls in flight: as each is answered, the next one begins.

Owns when calls begin and what is noted of them; how a call gets to a model is its transport's.
"""

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from sublet.channel.client_protocol import Answer
from sublet.errors import ServingError, SubletError, WorldError
from sublet.tools.loadtest.figures import Call, Figures, Window, chosen, figures, settled

WINDOWS = 20  # Windows in the longest time of a step.
_AGAIN = 0.01
"""Seconds after which a caller who was refused tries again."""
_LANDING = 10.0
"""Seconds that the last calls of a step may take beyond the time of a step."""
_LEAST = 20
"""Answers in a window: of fewer, a p95 says little."""


class Caller(Protocol):
    """What a load needs of a way to a model."""

    rows: int  # Of each call.

    async def ready(self, concurrency: int) -> None:
        """Prepare for so many calls at once."""

    def call(self) -> "asyncio.Future[Answer]":
        """Begin a call; its future has the answer."""


class Load:
    """Measures one step after another; `on_window` is called with the figures of each window.
    `pause` is the mean time between an answer and the caller's next call. Without one, all who
    shared a batch call again at the same moment, and so share the next one, too."""

    def __init__(
        self,
        caller: Caller,
        on_window: Callable[[Figures], None] = lambda figures: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.caller = caller
        self.on_window = on_window
        self.clock = clock
        self.pause = 0.0
        self.cut: Figures | None = None  # What a step had measured when it was cancelled.

    async def check(self, most: float) -> float:
        """Call a few times with nobody else there; how long the quickest call took. Raises what
        the model says if it answers none, and if steps of `most` seconds are too short for it."""
        # The first may have to warm something up, and any may be held up once by the machine.
        took = float("inf")
        for _ in range(3):
            began = self.clock()
            try:
                await self.caller.call()
            except ServingError as error:
                raise WorldError(
                    f"The model does not answer: {error.message}",
                    "If its inputs are at fault, give better ones: --shape, or --data FILE.npz.",
                ) from None
            took = min(took, self.clock() - began)
        if took > most / 4:
            raise WorldError(
                f"One call takes {took:.1f} s, too long for steps of {most:g} s.",
                f"Give it more: --time {4 * took + 1:.0f}s.",
            )
        return took

    async def step(self, concurrency: int, most: float, until_stable: bool = True) -> Figures:
        """So many calls at once, until the figures are stable, or for `most` seconds."""
        self.cut = None
        await self.caller.ready(concurrency)
        running = _Step(self, concurrency, most, until_stable)
        try:
            await running.run()
        except asyncio.CancelledError:
            if running.windows:
                self.cut = running.figures()
            raise
        return running.figures()


class _Step:
    """Ends when the figures are stable, when its time is over, or when nothing is answered."""

    def __init__(self, load: Load, concurrency: int, most: float, until_stable: bool) -> None:
        self._caller, self._on_window, self._clock = load.caller, load.on_window, load.clock
        self._concurrency = concurrency
        self._most = most
        self._until_stable = until_stable
        self._pause = load.pause
        self._draw = random.Random(0)
        self._least = max(_LEAST, concurrency)
        self.windows: list[Window] = []
        self._calls: list[Call] = []
        self._began = 0.0  # When the window began.
        self._last = 0.0  # When the step ends at the latest.
        self._failed = 0
        self._error = ""
        self._unheard = 0  # Failures since the last answer.
        self._flying = 0
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._landed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._began = self._clock()
        self._last = self._began + self._most
        # For calls that are not answered; who is answered looks at the clock anyway.
        timer = loop.call_later(self._most, self._end)
        for _ in range(self._concurrency):
            if not self._over.done():
                self._call()
        try:
            await self._over
        finally:
            timer.cancel()
            self._end()
        # So that the next step has the model to itself.
        try:
            await asyncio.wait_for(self._landed, self._most + _LANDING)
        except TimeoutError:
            raise WorldError(
                f"{self._flying} of {self._concurrency} calls are not answered any more.",
                "Is the model stuck? See what its server says.",
            ) from None

    def figures(self) -> Figures:
        windows, stable = chosen(self.windows)
        rows, failed = self._caller.rows, self._failed
        return figures(self._concurrency, rows, windows, failed, stable, self._error)

    def _call(self) -> None:
        began = self._clock()
        try:
            future = self._caller.call()
        except Exception as error:
            self._over.set_exception(error)
            return
        self._flying += 1
        future.add_done_callback(partial(self._done, began))

    def _done(self, began: float, future: "asyncio.Future[Answer]") -> None:
        now = self._clock()
        self._flying -= 1
        over = self._over.done()
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            if not over:
                self._fail(error)
        elif not over:
            _, queued, computed, rows = future.result()
            self._unheard = 0
            self._calls.append(Call(now - began, queued, computed, rows))
            enough = len(self._calls) >= self._least
            if enough and now - self._began >= self._most / WINDOWS:
                self._close(now)
        if not self._over.done():
            pause = self._draw.expovariate(1 / self._pause) if self._pause else 0.0
            if error is not None:
                pause = max(pause, _AGAIN)
            if pause:
                asyncio.get_running_loop().call_later(pause, self._again)
            else:
                self._call()
        elif not self._flying and not self._landed.done():
            self._landed.set_result(None)

    def _again(self) -> None:
        if not self._over.done():
            self._call()

    def _fail(self, error: BaseException) -> None:
        """Some calls may fail, such as those that find a queue full; not all of them."""
        self._failed += 1
        self._unheard += 1
        self._error = str(error)
        hopeless = self._unheard > 2 * self._least and not self._flying
        if hopeless or not isinstance(error, ServingError):
            self._over.set_exception(error)

    def _close(self, now: float) -> None:
        self.windows.append(Window(now - self._began, self._calls))
        self._calls, self._began = [], now
        self._on_window(
            figures(self._concurrency, self._caller.rows, self.windows[-1:], self._failed)
        )
        if self._until_stable and settled(self.windows):
            self._over.set_result(None)
        elif now >= self._last:
            self._end()

    def _end(self) -> None:
        """Its time is over, or somebody wants it to be."""
        now = self._clock()
        # The p95 of a short piece says little, and would be compared with those of whole ones.
        if self._calls and (not self.windows or len(self._calls) >= self._least):
            self.windows.append(Window(now - self._began, self._calls))
            self._calls = []
        if not self._over.done():
            if self.windows:
                self._over.set_result(None)
            else:
                self._over.set_exception(_silent(self._most))
        if not self._flying and not self._landed.done():
            self._landed.set_result(None)


def _silent(most: float) -> SubletError:
    return WorldError(
        f"No call was answered in {most:g} s.", "Give it more --time, or a lower --concurrency."
    )
