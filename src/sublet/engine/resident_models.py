"""The models that are in memory, or on their way there: how much each has, and which are evicted.

Makes room for a model and gives memory back. `paging` decides, by numbers and before anything is
loaded: TensorFlow stalls for ten seconds before it says that memory is out. Loads nothing.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, cast

from sublet.channel.codes import Code
from sublet.engine import paging
from sublet.engine.memory import Meter
from sublet.engine.model_entries import Key, ModelEntry
from sublet.errors import ServingError
from sublet.units import MiB, format_bytes

Busy = Callable[[str, int], bool]
OnEvent = Callable[[str, str, int, dict[str, Any]], None]

_LOOK = 0.02
"""Seconds between two looks whether busy models have become idle."""
_LEAST_RESERVE = 32 * MiB


class Residents:
    """A part of the store, whose lock and arguments these are; `entries` are all versions that
    are known."""

    def __init__(
        self,
        entries: dict[Key, ModelEntry],
        lock: threading.RLock,
        busy: Busy,
        on_event: OnEvent,
        clock: Callable[[], float],
        meter: Meter,
    ) -> None:
        self._entries = entries
        self._lock = lock
        self._busy = busy
        self._on_event = on_event
        self._clock = clock
        self._meter = meter
        self._load_lock = threading.Lock()
        """Whoever has it makes room and loads: one at a time, so that figures can be believed."""
        limit = meter.limit or 0
        self._reserve = paging.Reserve(min(limit // 8, _LEAST_RESERVE), limit // 2)

    @contextlib.contextmanager
    def reserved(self, entry: ModelEntry, began: float) -> Iterator[Callable[[], None]]:
        """Reserve the memory that a model will take; waits while all others are busy. Loads one
        at a time, unless what is yielded is called: it lets the next one load."""
        self._load_lock.acquire()
        early = False

        def hand_over() -> None:
            nonlocal early
            if not early:
                early = True
                self._load_lock.release()

        try:
            self._make_room(entry, began)
            yield hand_over
        finally:
            if not entry.stuck:
                entry.claimed = 0
            if not early:
                self._load_lock.release()

    def drop(self, entry: ModelEntry) -> None:
        """Give its memory back. Calls that run come to their end first."""
        with self._lock:
            loaded, entry.loaded = entry.loaded, None
        if loaded is not None:
            loaded.opened.close()
            self._on_event("unloaded", *entry.key, {"bytes": loaded.bytes})

    def relieve(self, key: Key, missing: int) -> bool:
        """Evict idle models of so many bytes, and leave as much more free from now on; whether
        there were any. The allocator does not split a chunk that leaves less than 128 MiB over
        unless it is twice what is asked: so memory may be out in a small pool though the figures
        say that it is not."""
        now = self._clock()
        self._reserve.note(self._reserve.bytes + missing, now)
        with self._lock:
            residents = [resident for resident in self._all() if resident.key != key]
            idle = [resident for resident in residents if not resident.busy and not resident.pinned]
            taken = sum(resident.bytes for resident in idle)
            plan = paging.plan(min(missing, taken), taken, 0, idle, now)
        keys = plan.keys if isinstance(plan, paging.Evict) else ()
        self._evict(keys)
        return bool(keys)

    def take_peak(self) -> int | None:
        """The most that was in use since the last call; None while something is loaded. So much
        of it as was for computing is left free from now on."""
        peak = self._meter.take_peak()
        if peak is None or self._load_lock.locked():
            return None
        with self._lock:
            held = sum(resident.bytes for resident in self._all())
        self._reserve.note(max(0, peak - held), self._clock())
        return peak

    def spare(self, key: Key) -> int:
        """Bytes that this model can compute with, at most: beside itself and those that stay."""
        with self._lock:
            kept = sum(
                resident.bytes for resident in self._all() if resident.pinned or resident.key == key
            )
        return max(0, (self._meter.limit or 0) - kept)

    def sweep(self) -> list[Key]:
        self.take_peak()
        with self._lock:
            keys = paging.expired(self._all(), self._clock())
        self._evict(keys)
        return cast("list[Key]", keys)

    def exhausted(self, key: Key, missing: int) -> ServingError:
        """The error when evicting all idle models is not enough: how much memory there would
        have to be."""
        entry = self._entries.get(key)
        with self._lock:
            fixed = sum(
                resident.bytes
                for resident in self._all()
                if resident.pinned and resident.key != key
            )
        own = 0 if entry is None else entry.bytes
        limit = self._meter.limit or 0
        wanted = max(fixed + own + max(missing, self._reserve.bytes), limit + missing)
        name, version = key
        return ServingError(
            f"{name} version {version} needs about {format_bytes(own + missing)}, and the engine "
            f"has {format_bytes(limit)}, of which pinned models hold {format_bytes(fixed)}. "
            f"Give it more: memory={-(-wanted // (64 * MiB)) * 64}MiB.",
            Code.RESOURCE_EXHAUSTED,
        )

    def _make_room(self, entry: ModelEntry, began: float) -> None:
        while True:
            with self._lock:
                plan = self._plan(entry, self._all(), self._clock() - began)
                if isinstance(plan, paging.Evict):
                    entry.claimed = entry.bytes
            if isinstance(plan, paging.Evict):
                self._evict(plan.keys)
                return
            if isinstance(plan, paging.Never):
                raise self.exhausted(entry.key, 0)
            time.sleep(_LOOK)

    def _plan(
        self, entry: ModelEntry, residents: list[paging.Residency], waited: float
    ) -> paging.Plan:
        limit = self._meter.limit
        if limit is None:
            return paging.Evict()
        return paging.plan(
            entry.bytes, limit, self._reserve.bytes, residents, self._clock(), waited
        )

    def _evict(self, keys: Iterable[Hashable]) -> None:
        for key in keys:
            entry = self._entries.get(cast("Key", key))
            if entry is not None:
                self.drop(entry)

    def _all(self) -> list[paging.Residency]:
        return [
            entry.residency(self._busy(*entry.key))
            for entry in self._entries.values()
            if entry.loaded is not None or entry.claimed
        ]
