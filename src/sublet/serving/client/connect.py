"""Calling a model that some engine of this user serves, from any process; no TensorFlow here.

Owns finding the engine, and finding it again after a fork or when it was replaced.
"""

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sublet.channel.client_protocol import Answer
from sublet.channel.codes import Code, NotServed
from sublet.channel.sync_client import SyncClient, Unsent
from sublet.channel.tensors import Array
from sublet.errors import ServingError
from sublet.serving.client import engine_directory, notices
from sublet.serving.client.call_arguments import Signatures, arrange, result

_MISFITS = (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION)
"""What a call is answered with whose signature or inputs the model does not have."""

_PATIENCE = 10.0
"""Seconds for an engine to say what it has: one that was stopped is passed over."""


def connect(name: str, version: int | None = None) -> "Model":
    """The served model of this name; its newest version, if none is named."""
    return Model(name, version)


class Model:
    """A model that is served elsewhere. Threads may share it, and forked children may use it. A
    call in flight raises ServingError (UNAVAILABLE) when its engine ends; the next one goes to
    the engine that took its place."""

    def __init__(self, name: str, version: int | None = None) -> None:
        self.name = name
        self._version = version
        self._lock = threading.Lock()
        self._pid = -1
        self._client: SyncClient | None = None
        self._path: Path
        self._signatures: Signatures
        self._number = -1
        self._connect()

    @property
    def version(self) -> int:
        """The version that was found; a newer one may have taken its place if none was named."""
        return self._number

    @property
    def signatures(self) -> Signatures:
        """How the model can be called."""
        self._connect()
        return self._signatures

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        """Arrays in, an array out, or a dict of arrays if there are several outputs."""
        return result(self._run(args, inputs))

    def run(
        self,
        *args: Any,
        timeout: float | None = None,
        priority: int = 0,
        signature: str | None = None,
        outputs: Sequence[str] = (),
        **inputs: Any,
    ) -> Any:
        """The same, with a time limit in seconds, a priority, a signature, or some outputs only."""
        return result(self._run(args, inputs, timeout, priority, signature, outputs))

    async def call_async(
        self, *args: Any, timeout: float | None = None, priority: int = 0, **inputs: Any
    ) -> Any:
        """The same in a coroutine. Cancelling it cancels the call, unless it runs already."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            client = self._connect()
            known = self._signatures
            try:
                name, arrays = arrange(known, args, inputs)
                future = client.submit(
                    self.name, self._version, name, arrays, (), deadline, priority
                )
                return result(await asyncio.wrap_future(future))
            except Unsent:
                continue  # As in `_run`.
            except ServingError as error:
                if not await asyncio.to_thread(self._once_more, error, client, known):
                    raise self._explained(error) from None

    def buffer(self, shape: int | Sequence[int], dtype: Any = np.float32) -> Array:
        """An array in shared memory: as an input it is sent without a copy, if it is large."""
        whole = (shape,) if isinstance(shape, int) else tuple(shape)
        return self._connect().buffer(whole, dtype)

    def close(self) -> None:
        with self._lock:
            if self._client is not None and self._pid == os.getpid():
                self._client.close()
            self._client = None

    def __repr__(self) -> str:
        return f"<sublet model {self.name!r}, version {self._number}>"

    def _run(
        self,
        args: tuple[Any, ...],
        inputs: dict[str, Any],
        timeout: float | None = None,
        priority: int = 0,
        signature: str | None = None,
        outputs: Sequence[str] = (),
    ) -> Answer:
        deadline = None if timeout is None else time.monotonic() + timeout
        wanted = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        while True:
            client = self._connect()
            known = self._signatures
            try:
                name, arrays = arrange(known, args, inputs, signature)
                return client.call(
                    self.name, self._version, name, arrays, wanted, deadline, priority
                )
            except Unsent:
                continue  # There is another engine, or an error that says that there is none.
            except ServingError as error:
                if not self._once_more(error, client, known):
                    raise self._explained(error) from None

    def _explained(self, error: ServingError) -> ServingError:
        """An engine knows only what it has; the server knows why it has not the others."""
        if error.code != Code.NOT_FOUND:
            return error
        return notices.refusal(self.name, self._version) or error

    def _once_more(self, error: ServingError, client: SyncClient, known: Signatures) -> bool:
        """Whether a call that was refused like this is to be made again."""
        if isinstance(error, NotServed):
            return self._moved(client)
        return error.code in _MISFITS and self._changed(client, known)

    def _moved(self, client: SyncClient) -> bool:
        """Whether another engine has the model now; calls go there from now on."""
        with self._lock:
            if self._client is not client:
                return True  # Another thread has found it.
            try:
                found = find(self.name, self._version, but=self._path)
            except ServingError:
                return False
            # The old client is left to those who wait on it, and goes with the last of them.
            self._client, self._path, self._number, self._signatures = found
            return True

    def _changed(self, client: SyncClient, known: Signatures) -> bool:
        """Whether the version that is served now has other signatures: then the call is made
        again."""
        question = {"ask": "describe", "model": self.name, "version": self._version}
        try:
            found = client.ask(question)
        except ServingError:
            return False
        with self._lock:
            self._number = int(found["version"])
            self._signatures = Signatures.read(found["signatures"])
            return self._signatures != known

    def _connect(self) -> SyncClient:
        client = self._client
        if client is not None and not client.closed and self._pid == os.getpid():
            return client
        if self._pid not in (-1, os.getpid()):
            self._lock = threading.Lock()  # Another thread of the parent may have had it.
        with self._lock:
            if self._client is None or self._client.closed or self._pid != os.getpid():
                # After a fork the parent's is left alone: its memory and threads are not ours.
                found = find(self.name, self._version)
                self._client, self._path, self._number, self._signatures = found
                self._pid = os.getpid()
            return self._client


def find(
    name: str, version: int | None, but: Path | None = None
) -> tuple[SyncClient, Path, int, Signatures]:
    """The engine that serves this model; another than `but`."""
    served: set[str] = set()
    refused: ServingError | None = None
    for path, client in engine_directory.open_all(but):
        try:
            rows = client.ask({"ask": "models"}, _PATIENCE)
            # A list of rows, as the engine answers this question; others are answered by objects.
            served |= {one["model"] for one in rows}  # type: ignore[index]
            if name in served:
                found = client.ask({"ask": "describe", "model": name, "version": version})
                return client, path, int(found["version"]), Signatures.read(found["signatures"])
        except ServingError as error:
            refused = error
        client.close()
    known = notices.refusal(name, version) or refused
    if known is not None:
        raise known
    if served:
        raise ServingError(
            f"No model {name!r} is served here, only: {', '.join(sorted(served))}.", Code.NOT_FOUND
        )
    raise ServingError(
        f"There is no model {name!r}: no server is running.",
        Code.UNAVAILABLE,
        "Start one: sublet serve MODELS.",
    )
