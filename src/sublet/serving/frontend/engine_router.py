"""Routes calls to engines: knows what is served, and has a client for each engine."""

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from sublet.channel.async_client import AsyncClient
from sublet.channel.client_protocol import Answer
from sublet.channel.codes import Code, QueueFull
from sublet.errors import ServingError
from sublet.serving import frontend_link as messages
from sublet.serving.catalogue import Catalogue, Version
from sublet.serving.frontend.backpressure import Backpressure, DelayedRefusals
from sublet.serving.frontend.limits import CallBudget, exhausted
from sublet.serving.frontend.model_backend import Arrays
from sublet.serving.frontend.request_traces import RequestTraces, incoming
from sublet.serving.metrics import Counts, Tally
from sublet.serving.redaction import Names, redact

_UNKNOWN = "(unknown)"
"""Counted for names that no model has: anybody can make up names without end."""
_MOST_LENT = 128
"""Large requests that come in directly to where the engine reads them."""
_GONE = 1 << 30
"""More calls than ever wait: an engine that has ended is the last to be chosen."""
_APIS = {"tensorflow/serving/classify": "Classify", "tensorflow/serving/regress": "Regress"}


class EngineRouter:
    """The `ModelBackend` of a front end. Everything happens in its event loop."""

    def __init__(self) -> None:
        self.catalogue = Catalogue()
        self.tally = Tally()
        self.names: Names = {}
        """Directories of the server, for what engines say of them."""
        self.silent: frozenset[str] = frozenset()  # The sockets of engines that do not answer.
        self.link: messages.Link  # To the server; set before anything is asked of it.
        self.budget = CallBudget()
        self.traces: RequestTraces | None = None
        """Makes a trace of each call, where somebody has asked for that."""
        self._backpressure = Backpressure()
        self._refusals = DelayedRefusals()
        self._clients: dict[str, AsyncClient] = {}
        self._retired: list[AsyncClient] = []
        """Clients that get no new calls; each has some to finish."""

    def infer(
        self,
        version: Version,
        signature: str,
        inputs: Arrays,
        outputs: Sequence[str] = (),
        deadline: float | None = None,
        priority: int = 0,
    ) -> Awaitable[Answer]:
        # A future, as a rule: a task for each call would cost too much.
        client = self._clients.get(self._engine(version))
        if client is None or client.closed or client.stale:
            return self._connect_and_call(version, signature, inputs, outputs, deadline, priority)
        return self._call(client, version, signature, inputs, outputs, deadline, priority)

    def unready(self, version: Version | None = None) -> str:
        if version is None:
            return self.catalogue.unready(self.silent)
        if version.answers(self.silent):
            return ""
        return f"The engine of {version.model} does not answer, or is being started again."

    def memory(self, size: int) -> memoryview:
        # With several engines nobody knows yet whose tensors will lie in it. And much of it is not
        # shared memory: each piece of that has a descriptor until it is sent.
        if len(self._clients) == 1:
            (client,) = self._clients.values()
            if not client.closed and client.lent < _MOST_LENT:
                return client.buffer((size,), np.uint8).data
        return np.empty(size, np.uint8).data

    def admit(self, version: Version, deadline: float | None = None) -> None:
        try:
            self._backpressure.check((version.model, version.number), time.monotonic(), deadline)
        except QueueFull as full:
            raise self._refusals.refusal(full.message) from None

    async def reload(self, config: bytes) -> None:
        await self._ask_server(messages.Reload(config))

    async def change_model(self, name: str, load: bool) -> None:
        await self._ask_server(messages.ChangeModel(name, load))

    async def _ask_server(self, question: messages.Reload | messages.ChangeModel) -> None:
        reply = await self.link.ask(question)
        if reply.code:
            raise ServingError(reply.error, reply.code)

    def count(self, model: str, api: str, entrypoint: str, code: int, seconds: float) -> None:
        name = model if model in self.catalogue.models else _UNKNOWN
        self.tally.request(name, api, entrypoint, code, seconds)

    async def exposition(self) -> str:
        text: str = (await self.link.ask(messages.AskExposition())).text
        return text

    async def statistics(self) -> Counts:
        counts: Counts = (await self.link.ask(messages.AskStatistics())).inferences
        return counts

    async def ask_engines(self, question: Mapping[str, Any]) -> list[Any]:
        async def ask(path: str) -> Any:
            return await (await self._client(path)).ask(question)

        return await asyncio.gather(*map(ask, sorted(self.catalogue.engines())))

    async def update(self, catalogue: Catalogue) -> None:
        """Serve this from now on; returns when no call goes to what was before."""
        self.catalogue = catalogue
        for path in self._clients.keys() - catalogue.engines():
            self._retired.append(self._clients.pop(path))
        self.tidy()
        # Whoever found a version before this has sent its call two turns of the loop later.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def tidy(self) -> None:
        """Close clients that no call uses any more."""
        for client in [client for client in self._retired if not len(client)]:
            self._retired.remove(client)
            client.close()

    def close(self) -> None:
        """Hang up on all engines."""
        for client in (*self._clients.values(), *self._retired):
            client.close()
        self._clients.clear()
        if self.traces is not None:
            self.traces.close()

    def _engine(self, version: Version) -> str:
        """The engine for a call: of several, one that answers and has the fewest of our calls."""
        if len(version.engines) < 2:
            return version.engines[0] if version.engines else ""
        return min(version.engines, key=lambda path: (path in self.silent, self._waiting(path)))

    def _waiting(self, path: str) -> int:
        client = self._clients.get(path)
        if client is None:
            return 0
        return _GONE if client.closed else len(client)

    async def _connect_and_call(self, version: Version, *call: Any) -> Answer:
        return await self._call(await self._connected(version), version, *call)

    def _call(
        self,
        client: AsyncClient,
        version: Version,
        signature: str,
        inputs: Arrays,
        outputs: Sequence[str],
        deadline: float | None,
        priority: int,
    ) -> asyncio.Future[Answer]:
        size = rows = 0
        for array in inputs.values():
            size += sum(map(len, array.flat)) if array.dtype.hasobject else array.nbytes
            rows = len(array) if array.ndim else 1
        key = version.model, version.number
        began = time.monotonic()
        if not self.budget.take(key, size, client.abandoned):
            text = f"Too many calls of {version.model} wait for their answers. Try again later."
            self._backpressure.full(key, text, began)
            raise self._refusals.refusal(text)
        try:
            future = client.call(*key, signature, inputs, outputs, deadline, priority)
        except BaseException as error:
            self.budget.give(key, size)
            if isinstance(error, OSError | MemoryError):
                raise exhausted() from None
            raise
        future.add_done_callback(
            partial(self._finished, version, signature, size, rows, began, deadline)
        )
        if self.traces is not None:
            header = incoming.get()
            future.add_done_callback(
                partial(self._trace, version, signature, header, rows, began, self.traces)
            )
        return future

    def _trace(
        self,
        version: Version,
        signature: str,
        header: bytes,
        rows: int,
        began: float,
        traces: RequestTraces,
        done: asyncio.Future[Answer],
    ) -> None:
        outcome = None if done.cancelled() else done.exception() or done.result()
        traces.record(version, signature, header, began, rows, outcome)

    def _finished(
        self,
        version: Version,
        signature: str,
        size: int,
        rows: int,
        began: float,
        deadline: float | None,
        done: asyncio.Future[Answer],
    ) -> None:
        now = time.monotonic()
        key = version.model, version.number
        self.budget.give(key, size)
        calls = self.tally.inference(*key)
        error = None if done.cancelled() else done.exception()
        if isinstance(error, QueueFull):
            self._backpressure.full(key, error.message, now, deadline)
        else:
            self._backpressure.done(key)
            if isinstance(error, ServingError):
                # This callback is the first, so whoever answers the client reads this.
                error.message = redact(error.message, self.names)
        if done.cancelled() or error is not None:
            calls.fail(now - began)
            return
        api = "Predict"
        if version.signatures is not None and (one := version.signatures.get(signature)):
            api = _APIS.get(one.method, api)
        answer = done.result()
        self.tally.batch(version.model, api, answer.queued, answer.computed)
        calls.answer(rows, answer.rows, now - began, answer.queued, answer.computed)

    async def _connected(self, version: Version) -> AsyncClient:
        """The client of a version's engine; connected if there is none that works."""
        try:
            return await self._client(self._engine(version))
        except (OSError, ServingError) as error:
            raise ServingError(
                f"The engine of {version.model} has ended and is being started again. Try again.",
                Code.UNAVAILABLE,
            ) from error

    async def _client(self, path: str) -> AsyncClient:
        """The client of this engine; connected if there is none that works."""
        known = self._clients.get(path)
        if known is not None and not known.closed:
            if not known.stale:
                return known
            self._retired.append(self._clients.pop(path))
        # Connecting to a Unix socket takes no turn of the loop, so nobody else does it too.
        client = self._clients[path] = await AsyncClient.open(path)
        return client
