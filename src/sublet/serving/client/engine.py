"""The owner's side of one engine: its job at the broker, and the channel to it.

Owns the engine's process from the asking for a lease to its end. The engine listens on a socket of
its own beside, for everybody else of the same user; it ends with its owner.
"""

import contextlib
import os
import select
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from sublet.channel.client_protocol import Answer
from sublet.channel.codes import Code, invalid_argument
from sublet.channel.sync_client import SyncClient
from sublet.client import job_request
from sublet.client.job_channel import JobChannel
from sublet.engine.flight_recorder import FlightRecorder
from sublet.engine.functions import stow
from sublet.engine.model_options import OPTIONS
from sublet.errors import BadRequest, ServingError, SubletError, TimedOut, WorldError
from sublet.home import Home
from sublet.serving.client.call_arguments import Signatures, arrange, result
from sublet.serving.client.engine_directory import EngineDirectory
from sublet.serving.output_relay import OutputRelay
from sublet.text import plain

if TYPE_CHECKING:
    from sublet.domain.lease import Lease
    from sublet.wire.messages import Ended, Granted, Retried, Started


_STARTING = 300.0
"""Seconds in which an engine that has its lease must answer."""
_ENDING = 5.0
"""Seconds that an engine has to end by itself, and those who see to it to say that it has."""


class EngineProcess:
    """An engine's process: a job in the foreground that is followed by a thread.

    `client` is the owner's channel; it may be used once `wait` has returned. `on_end` is called
    once, in that thread, when the process is gone; `recorder` then says what it ran. The engine
    writes to `output`, or else where its owner does.
    """

    def __init__(
        self,
        memory: str = "auto",
        device: str | None = None,
        slots: int = 0,
        name: str | None = None,
        on_wait: Callable[[str], None] | None = None,
        on_end: Callable[["Ended | None"], None] | None = None,
        recorder: FlightRecorder | None = None,
        output: OutputRelay | None = None,
    ) -> None:
        self._directory = EngineDirectory(Home.find())
        self.path = self._directory.socket  # Where the engine listens.
        self.files = self._directory.files
        """A directory for what is made for it; goes with it."""
        self.lease: Lease | None = None
        self.pid: int | None = None
        self.reason = ""  # What it waits for, while it does.
        self.outcome: Ended | None = None
        self.error: SubletError | None = None
        self._output = output
        self._on_wait = on_wait
        self._on_end = on_end
        self._state = threading.Condition()
        self._granted = self._over = False
        self._process = -1
        """A pidfd: its number may belong to somebody else one day."""
        words = [sys.executable, "-m", "sublet.engine.engine", self.path, str(slots)]
        try:
            spec = job_request.job(words, memory, device=device, name=name or "engine")
            self._job = JobChannel(spec, self, None if output is None else output.writing)
        except BaseException:
            self._clean_up()
            raise
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.client = SyncClient(self._job.channel)
        if recorder is not None:
            self.client.send_recorder(recorder.descriptor)
            recorder.close()
        self._thread = threading.Thread(target=self._follow, name="sublet-engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return not self._over

    def wait(self, timeout: float | None = None) -> None:
        """Until it has its lease, and answers. Raises what kept it from that."""
        with self._state:
            self._state.wait_for(lambda: self._granted or self._over, timeout)
            if not self._granted and not self._over:
                raise TimedOut(
                    f"There was no room for an engine in {timeout:g} s: {self.reason}",
                    "Wait longer, or ask for less memory.",
                )
        if self.error is not None:
            raise self.error
        try:
            self.client.ask({"ask": "hello"}, _STARTING)
        except ServingError:
            silent = not self.client.closed
            self.close()
            raise self.error or WorldError(
                "The engine did not answer, and was ended."
                if silent
                else "The engine ended before it was ready.",
                "What it said is above.",
            ) from None

    def kill(self) -> None:
        """End it at once; `on_end` is called as usual."""
        with self._state, contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def close(self, grace: float = _ENDING) -> None:
        """End it, and wait until it is gone: by itself, or by force after so many seconds. If
        nobody says that it is gone, its keeper sees to that."""
        self.client.close()
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake, 1)
        if threading.current_thread() is self._thread:
            return
        self._thread.join(grace)
        if self._thread.is_alive():
            self.kill()
            self._thread.join(_ENDING)

    def waits(self, reason: str) -> None:
        """From the broker: there is no memory for it yet."""
        self.reason = reason
        if self._on_wait is not None:
            self._on_wait(reason)

    def granted(self, message: "Granted") -> None:
        """From the broker: it has a lease."""
        self.lease = message.lease
        with self._state:
            self._granted = True
            self._state.notify_all()
        if self._on_wait is not None:
            self._on_wait("")

    def started(self, message: "Started") -> None:
        self.pid = message.pid
        self._forget_process()  # Another broker may say it once more.
        with self._state, contextlib.suppress(OSError):  # It has ended already.
            self._process = os.pidfd_open(message.pid)

    def lacks_memory(self, reason: str) -> None:
        """From the broker: calls that wait for memory fail by themselves, if they do."""

    def retried(self, message: "Retried") -> None:
        """From the broker: it is tried again, which an engine is not."""

    def _follow(self) -> None:
        """The thread: hear the broker until the engine has ended."""
        poll = select.poll()
        try:
            while self.outcome is None:
                poll.register(self._wake, select.POLLIN)
                poll.register(self._job.fileno(), select.POLLIN)
                number = self._job.fileno()
                heard = [one for one, _ in poll.poll()]
                poll.unregister(number)
                if number in heard:
                    self.outcome = self._job.hear()
                elif not self._granted:
                    break  # It was given up while it waited.
                else:
                    # The engine sees the end of its channel, and goes; that is waited for.
                    poll.unregister(self._wake)
                    os.eventfd_read(self._wake)
        except SubletError as error:
            self.error = error
        finally:
            self.client.close()
            self._job.close()
            os.close(self._wake)
            self._clean_up()
            with self._state:
                self._over = True
                self._state.notify_all()
            if self._on_end is not None:
                self._on_end(self.outcome)

    def _clean_up(self) -> None:
        self._forget_process()
        if self._output is not None:
            self._output.close()
        self._directory.close()

    def _forget_process(self) -> None:
        with self._state:
            process, self._process = self._process, -1
        if process >= 0:
            os.close(process)


class _Loaded(Struct, frozen=True):
    """A model that was loaded, and how to load it again."""

    path: str
    options: dict[str, Any]
    signatures: Signatures


class Engine:
    """Many models on one device, in one process of their own, under one lease.

        with sublet.Engine(memory="2GiB") as engine:
            engine.load("a", "models/a")
            y = engine.run("a", x)

    `device` is `cpu`, `gpu`, `gpu1` or a UUID; on several devices, make an engine for each. Other
    processes of the same user call its models with `sublet.connect("a")`. Threads may share it. It
    ends with this process at the latest.
    """

    def __init__(
        self,
        memory: str | int = "auto",
        device: str | None = None,
        *,
        name: str | None = None,
        timeout: float | None = None,
    ) -> None:
        self._models: dict[str, dict[int, _Loaded]] = {}
        self._pid = os.getpid()
        self.worker = EngineProcess(str(memory), device, name=name, on_wait=_say)
        try:
            self.worker.wait(timeout)
        except BaseException:
            self.worker.close()
            raise

    @property
    def device(self) -> str:
        """Where it is: `cpu`, `gpu0` …"""
        assert self.worker.lease is not None
        return self.worker.lease.device

    def load(self, name: str, source: Any, version: int = 1, **options: Any) -> None:
        """Serve a SavedModel (its directory), a `.keras` file, a Keras model or a function.

        Returns when it is in memory. Raises ServingError if it cannot be loaded; if there was a
        model of this name and version, it is served on then. Options are those of
        docs/serving.md.
        """
        _check(name, version, options)
        client = self._client()
        try:
            # For functions and models of this program, on their way to the engine.
            path, more = stow(source, tempfile.mkdtemp(dir=self.worker.files))
        except FileNotFoundError:
            self._client()  # The directory goes with the engine.
            raise
        loaded = self._models.get(name, {})
        before = loaded.get(version)
        path = os.path.abspath(path)
        if before is not None and before.path == path:
            # Its files may be others now; the engine would have it as it was.
            client.ask({"ask": "unload", "model": name, "version": version})
        try:
            fresh = _load(client, name, version, path, {**more, **options})
        except ServingError:
            with contextlib.suppress(ServingError):
                if before is None:
                    client.ask({"ask": "forget", "model": name, "version": version})
                else:
                    _load(client, name, version, before.path, before.options)
            raise
        self._models[name] = {**loaded, version: fresh}

    def unload(self, name: str, version: int | None = None) -> None:
        """Serve it no more: all its versions, or this one."""
        self._find(name)
        for number in list(self._models[name]) if version is None else [version]:
            self._client().ask({"ask": "forget", "model": name, "version": number})
            self._models[name].pop(number, None)
        if not self._models[name]:
            del self._models[name]

    def submit(self, name: str, *args: Any, **inputs: Any) -> "Future[Any]":
        """Call a model; the arrays must not be changed until the future is done. Cancelling it
        cancels the call, unless it runs already."""
        version, signatures = self._find(name)
        signature, arrays = arrange(signatures, args, inputs)
        future: Future[Any] = Future()
        answer = self._client().submit(name, version, signature, arrays)
        answer.add_done_callback(lambda done: _pass_on(done, future))
        future.add_done_callback(lambda done: done.cancelled() and answer.cancel())
        return future

    def run(self, name: str, *args: Any, **inputs: Any) -> Any:
        """Call a model, and wait: one output is an array, several are a dict."""
        version, signatures = self._find(name)
        signature, arrays = arrange(signatures, args, inputs)
        return result(self._client().call(name, version, signature, arrays))

    def models(self) -> list[dict[str, Any]]:
        """What is known of each model."""
        # A list of rows, as the engine answers this question; others are answered by objects.
        return list(self._client().ask({"ask": "models"}))  # type: ignore[arg-type]

    def close(self) -> None:
        """End the engine; calls in flight fail. In a forked child: nothing, it is the parent's."""
        if os.getpid() == self._pid:
            self.worker.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _client(self) -> SyncClient:
        if os.getpid() != self._pid:
            raise BadRequest(
                "This engine belongs to the process that this one was forked from.",
                "Call its models with sublet.connect(NAME).",
            )
        if self.worker.client.closed:
            raise ServingError("This engine has ended. Make another one.", Code.UNAVAILABLE)
        return self.worker.client

    def _find(self, name: str) -> tuple[int, Signatures]:
        found = self._models.get(name)
        if not found:
            known = ", ".join(sorted(self._models)) or "none"
            raise ServingError(
                f"This engine has no model {name!r}; it has: {known}. Call engine.load first.",
                Code.NOT_FOUND,
            )
        version = max(found)
        return version, found[version].signatures


def _load(
    client: SyncClient, name: str, version: int, path: str, options: dict[str, Any]
) -> "_Loaded":
    key = {"model": name, "version": version}
    client.ask({"ask": "add", **key, "path": path, "options": options})
    found = client.ask({"ask": "load", **key})
    return _Loaded(path, options, Signatures.read(found["signatures"]))


def _check(name: str, version: int, options: dict[str, Any]) -> None:
    if not isinstance(name, str) or not name:
        raise invalid_argument(f"{name!r} is no name of a model.")
    if type(version) is not int or version < 0:
        raise invalid_argument(f"The version {version!r} is no whole number from 0 on.")
    for unknown in options.keys() - OPTIONS:
        raise invalid_argument(
            f"There is no option {unknown!r}; there are: {', '.join(sorted(OPTIONS))}."
        )


def _pass_on(done: "Future[Answer]", future: "Future[Any]") -> None:
    if not future.set_running_or_notify_cancel():
        return
    error = done.exception()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result(done.result()))


def _say(reason: str) -> None:
    if reason:
        print(f"sublet: the engine waits: {plain(reason)}", file=sys.stderr, flush=True)
