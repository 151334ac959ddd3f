"""The models of an engine: which are known, and how they come into memory and go.

Owns loading and unloading. Never runs a request.

    add ─▶ known ──load──▶ loading ─▶ in memory ──unload, evicted, idle──▶ known
                              └─▶ failed: the same answer for a while, then it is tried again
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from sublet.channel.codes import Code
from sublet.engine import failures, model_sources
from sublet.engine.functions import FunctionOpening
from sublet.engine.keras_files import KerasOpening
from sublet.engine.memory import Meter
from sublet.engine.model_entries import Key, Loaded, ModelEntry
from sublet.engine.model_opening import LoadAttempt, Opening
from sublet.engine.resident_models import Busy, OnEvent, Residents
from sublet.engine.savedmodel_loading import SavedModelOpening
from sublet.engine.tflite_models import TfliteOpening
from sublet.errors import ServingError
from sublet.units import MiB, format_seconds

LOAD_TIMEOUT = 300.0  # Seconds for a model that names no `load_timeout`.
_SLOW = 5.0
"""Seconds after which other models may be loaded beside one that takes longer."""


T = TypeVar("T")


class ModelStore:
    """All models of an engine. Any thread may call anything; `load` and `unload` block.

    `busy(name, version)` tells whether a model has requests, queued or running. It is called with
    the store's lock held, so it must not call the store. `on_event(event, name, version, details)`
    is called with "loading" before each load, so that it is known which model was on its way if
    the process ends there, and with "loaded", "failed" and "unloaded" afterwards.
    """

    def __init__(
        self,
        busy: Busy = lambda name, version: False,
        on_event: OnEvent = lambda *event: None,
        clock: Callable[[], float] = time.monotonic,
        meter: Meter | None = None,
        cache: str = "",
    ) -> None:
        self._on_event = on_event
        self._clock = clock
        self._meter = Meter() if meter is None else meter
        self._entries: dict[Key, ModelEntry] = {}
        self._lock = threading.RLock()
        self._residents = Residents(self._entries, self._lock, busy, on_event, clock, self._meter)
        self._cache = cache
        """A directory of the engine's own, for what is made of Keras files."""

    def add(
        self, name: str, version: int, path: str, options: Mapping[str, Any] | None = None
    ) -> None:
        """Make a version known; it is loaded when `load` asks for it. One that is known already
        and has failed may be tried again at once.

        Options: `pin`, `idle_seconds`, `hold_seconds`, `load_timeout`, `warm_up`, `warm_up_rows`,
        `tags`, `stateful`, `batchable`, `follow_links`. Others are not the store's.
        """
        key = (name, version)
        with self._lock:
            known = self._entries.get(key)
            if known is not None and known.path == path:
                known.options, known.error, known.failures = dict(options or {}), None, 0
                return
            self._entries[key] = ModelEntry(key, path, dict(options or {}), self._clock())
        if known is not None:
            known.forgotten = True
            self._residents.drop(known)

    def use(self, name: str, version: int) -> Loaded | None:
        """The version if it is in memory, and note that it is used; None: `load` it first."""
        entry = self._entries.get((name, version))
        if entry is None:
            return None
        entry.habit = entry.habit.after_use(self._clock())
        return entry.loaded

    def load(self, name: str, version: int) -> Loaded:
        """The version, in memory; others are evicted if need be. Waits while all of them are
        busy. A ServingError says why it cannot be loaded."""
        entry = self._entry(name, version)
        began = self._clock()
        with entry.loading:
            if entry.loaded is not None:
                return entry.loaded
            if entry.error is not None and (entry.stuck or self._clock() < entry.retry):
                raise ServingError(entry.error.message, entry.error.code)
            try:
                loaded = self._load(entry, began)
            except ServingError as error:
                with self._lock:
                    entry.fail(error, self._clock())
                details = {"code": int(error.code), "error": error.message}
                self._on_event("failed", name, version, details)
                raise
            if entry.forgotten:
                self._residents.drop(entry)
                raise failures.not_found(name, version)
            return loaded

    def unload(self, name: str, version: int) -> None:
        """Give its memory back; it stays known. Calls that run come to their end first."""
        entry = self._entries.get((name, version))
        if entry is not None:
            self._residents.drop(entry)

    def interrupt(self, name: str, version: int) -> Loaded | None:
        """Take the model out, so that it is loaded anew. The caller cancels and closes what is
        returned, which may take for ever."""
        entry = self._entries.get((name, version))
        if entry is None:
            return None
        with self._lock:
            loaded, entry.loaded = entry.loaded, None
        if loaded is not None:
            loaded.stopped.set()
            self._on_event("unloaded", name, version, {"bytes": loaded.bytes})
        return loaded

    def forget(self, name: str, version: int) -> None:
        """Unload it, and forget it."""
        with self._lock:
            entry = self._entries.pop((name, version), None)
        if entry is not None:
            entry.forgotten = True
            self._residents.drop(entry)

    def measured(
        self, name: str, version: int, call: Callable[[], T]
    ) -> tuple[T, tuple[int, int] | None]:
        """The result of the call, and the bytes of the pool that it took and that there were for
        it, if known; no other may run meanwhile."""
        before = self._meter.now() if self._residents.take_peak() is not None else None
        result = call()
        peak = None if before is None else self._residents.take_peak()
        if before is None or peak is None:
            return result, None
        return result, (max(0, peak - before), self._residents.spare((name, version)))

    def relieve(self, name: str, version: int, error: BaseException) -> ServingError | None:
        """A call ended with `error` for want of memory: evict what is idle. None if the call can
        be tried once more, else the answer."""
        missing = failures.asked(error)
        if self._residents.relieve((name, version), max(missing, MiB)):
            return None
        return self._residents.exhausted((name, version), missing)

    def sweep(self) -> list[Key]:
        """Unload what was idle for too long, and note what computing needed. Called once a
        second or so."""
        return self._residents.sweep()

    def statistics(self) -> list[dict[str, Any]]:
        """All that are known, by name and version."""
        now = self._clock()
        with self._lock:
            entries = sorted(self._entries.values(), key=lambda entry: entry.key)
            return [entry.statistics(now) for entry in entries]

    def close(self) -> None:
        for key in list(self._entries):
            self.forget(*key)
        if self._cache:
            shutil.rmtree(self._cache, ignore_errors=True)

    def _entry(self, name: str, version: int) -> ModelEntry:
        entry = self._entries.get((name, version))
        if entry is None:
            raise failures.not_found(name, version)
        return entry

    def _load(self, entry: ModelEntry, began: float) -> Loaded:
        opening = self._opening(entry)
        with self._residents.reserved(entry, began) as hand_over:
            try:
                return self._open(entry, opening, hand_over)
            except BaseException as error:
                if not failures.out_of_memory(error):
                    raise failures.explained(error, entry.path) from error
                if not self._residents.relieve(entry.key, entry.bytes):
                    raise self._residents.exhausted(entry.key, failures.asked(error)) from error
            try:
                return self._open(entry, self._opening(entry), hand_over)
            except BaseException as error:
                if failures.out_of_memory(error):
                    raise self._residents.exhausted(entry.key, failures.asked(error)) from error
                raise failures.explained(error, entry.path) from error

    def _opening(self, entry: ModelEntry) -> Opening:
        kind = model_sources.kind(entry.path, entry.options)
        if kind == model_sources.FUNCTION:
            return FunctionOpening(entry.path, entry.options)
        if kind == model_sources.KERAS:
            if not self._cache:
                self._cache = tempfile.mkdtemp(prefix="sublet-keras-")
            return KerasOpening(entry.path, entry.options, self._cache)
        if kind == model_sources.TFLITE:
            return TfliteOpening(entry.path, entry.options)
        return SavedModelOpening(entry.path, entry.options)

    def _open(self, entry: ModelEntry, opening: Opening, hand_over: Callable[[], None]) -> Loaded:
        """Load it within its time limit."""
        name, version = entry.key
        limit = float(entry.options.get("load_timeout") or LOAD_TIMEOUT)
        self._on_event("loading", name, version, {"bytes": entry.claimed})
        before, began = self._meter.held(), time.monotonic()
        attempt = LoadAttempt(opening, entry.path, entry.options, partial(self._abandoned, entry))
        alone = attempt.wait(min(_SLOW, limit))
        if not alone:
            hand_over()
        if not attempt.wait(limit - (time.monotonic() - began)) and not attempt.stop():
            entry.stuck = True
        if attempt.opened is None:
            raise attempt.error or ServingError(
                f"{entry.path} was still being loaded after {format_seconds(limit)}. Look at what "
                "it does when it is initialised, or give it more time: --load_timeout (in a "
                "sublet.Engine, load_timeout=).",
                Code.DEADLINE_EXCEEDED,
            )
        after = self._meter.held()
        # The peak of a load says nothing of what computing needs.
        self._meter.take_peak()
        with self._lock:
            if alone and before is not None and after is not None:
                entry.measured = max(0, after - before)
            elif entry.measured is None:
                entry.measured = entry.bytes
            entry.seconds = time.monotonic() - began
            entry.loads += 1
            entry.error, entry.failures = None, 0
            entry.since = self._clock()
            loaded = Loaded(attempt.opened, entry.bytes)
            entry.loaded = loaded
        self._on_event("loaded", name, version, {"bytes": loaded.bytes, "seconds": entry.seconds})
        return loaded

    def _abandoned(self, entry: ModelEntry) -> None:
        """A load that was given up has ended after all."""
        with self._lock:
            entry.stuck, entry.claimed = False, 0
