"""The models of an engine: which are known, which are in memory, and what they cost.

Owns loading and unloading, and the figures that both are decided by. `paging` decides, by numbers
and before anything is loaded: TensorFlow stalls for ten seconds before it says that memory is out.
Never runs a request.

    add ─▶ known ──load──▶ loading ─▶ in memory ──unload, evicted, idle──▶ known
                              └─▶ failed: the same answer for a while, then it is tried again
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, cast

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.inside.serving import failures, paging, sources
from sublet.inside.serving.functions import FunctionOpening
from sublet.inside.serving.keras_files import KerasOpening
from sublet.inside.serving.loading import Opened, Opening, SavedModelOpening
from sublet.inside.serving.memory import Meter
from sublet.inside.serving.signatures import Bound
from sublet.inside.serving.warmup import warm_up
from sublet.units import MiB, format_bytes, format_seconds

Key = tuple[str, int]

LOAD_TIMEOUT = 300.0
"""Seconds for a model that names no `load_timeout`."""
_SLOW = 5.0
"""Seconds after which other models may be loaded beside one that takes longer."""
_GRACE = 2.0
"""Seconds that a cancelled load has to end."""
_TURN = 4.0
"""A model with requests stays for so many times what its loading took, and at least a second."""
_RETRY = (5.0, 300.0)
"""Seconds until a load that failed is tried again: at first, and after it has failed often."""
_LOOK = 0.02
"""Seconds between two looks whether busy models have become idle."""
_LEAST_RESERVE = 32 * MiB


@dataclasses.dataclass(frozen=True)
class Loaded:
    """One version of a model in memory."""

    name: str
    version: int
    opened: Opened
    seconds: float
    """That loading took, warm-up included."""
    bytes: int
    """Of TensorFlow's pool."""

    @property
    def signatures(self) -> dict[str, Bound]:
        return self.opened.signatures


@dataclasses.dataclass(frozen=True)
class Statistics:
    """One version of a model, as it stands."""

    name: str
    version: int
    state: str
    """known, loading, ready, failed, or stuck: loading without end, and not to be stopped."""
    bytes: int
    measured: bool
    """Whether `bytes` was, or is an estimate."""
    seconds: float
    """That the last load took, 0 before the first."""
    loads: int
    uses: int
    idle: float | None
    """Seconds since the last use."""
    pinned: bool
    error: str


class _Entry:
    """What is known of one version. Changed with the store's lock held, but for its uses."""

    def __init__(self, key: Key, path: str, options: dict[str, Any], now: float) -> None:
        self.key = key
        self.path = path
        self.options = options
        self.habit = paging.Habit(now)
        self.uses = 0
        self.loads = 0
        self.loading = threading.Lock()
        """Held by the thread that loads it; others wait, and find it loaded."""
        self.loaded: Loaded | None = None
        self.since = 0.0
        self.claimed = 0
        """Bytes that it may take while it is being loaded."""
        self.measured: int | None = None
        self.seconds = 0.0
        self.error: ServingError | None = None
        self.failures = 0
        self.retry = 0.0
        self.stuck = False
        self.forgotten = False

    @property
    def bytes(self) -> int:
        """What it takes: measured, once it has been loaded."""
        return sources.estimate(self.path) if self.measured is None else self.measured


class Store:
    """All models of an engine. Any thread may call anything; `load` and `unload` block.

    `busy(name, version)` tells whether a model has requests, queued or running; it is asked with
    the store's lock held, so it asks nothing of the store. `told(event, name, version, details)`
    hears of "loading" before each load, so that whoever listens knows which
    model was on its way if the process ends there, and of "loaded", "failed" and "unloaded" after.
    """

    def __init__(
        self,
        busy: Callable[[str, int], bool] = lambda name, version: False,
        told: Callable[[str, str, int, dict[str, Any]], None] = lambda *event: None,
        clock: Callable[[], float] = time.monotonic,
        meter: Meter | None = None,
        cache: str = "",
    ) -> None:
        self._busy = busy
        self._told = told
        self._clock = clock
        self._meter = Meter() if meter is None else meter
        self._entries: dict[Key, _Entry] = {}
        self._lock = threading.RLock()
        self._turn = threading.Lock()
        """Whoever has it makes room and loads: one at a time, so that figures can be believed."""
        limit = self._meter.limit
        self._reserve = paging.Reserve(min((limit or 0) // 8, _LEAST_RESERVE), (limit or 0) // 2)
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
            self._entries[key] = _Entry(key, path, dict(options or {}), self._clock())
        if known is not None:
            known.forgotten = True
            self._drop(known)

    def use(self, name: str, version: int) -> Loaded | None:
        """The version if it is in memory, and note that it is used; None: `load` it first."""
        entry = self._entries.get((name, version))
        if entry is None:
            return None
        entry.uses += 1
        entry.habit = entry.habit.after_use(self._clock())
        return entry.loaded

    def look(self, name: str, version: int) -> Loaded | None:
        """The version if it is in memory, without its being a use."""
        entry = self._entries.get((name, version))
        return None if entry is None else entry.loaded

    def load(self, name: str, version: int) -> Loaded:
        """The version, in memory; others are evicted if need be. Waits while all of them are busy.

        A ServingError says why it cannot be.
        """
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
                self._note_failure(entry, error)
                raise
            if entry.forgotten:
                self._drop(entry)
                raise _unknown(name, version)
            return loaded

    def unload(self, name: str, version: int) -> None:
        """Give its memory back; it stays known. Calls that run come to their end first."""
        entry = self._entries.get((name, version))
        if entry is not None:
            self._drop(entry)

    def forget(self, name: str, version: int) -> None:
        """Unload it, and know it no more."""
        with self._lock:
            entry = self._entries.pop((name, version), None)
        if entry is not None:
            entry.forgotten = True
            self._drop(entry)

    def replace(self, name: str, old: int, new: int) -> Loaded:
        """Load `new` and unload `old`: afterwards where both fit, so that there is no gap; first
        where a second copy does not fit. If `new` cannot be loaded `old` stays, or comes back."""
        entry, present = self._entry(name, new), self._entries.get((name, old))
        if present is None or present.loaded is None:
            return self.load(name, new)
        with self._lock:
            seats = [
                dataclasses.replace(seat, pinned=seat.pinned or seat.key == present.key)
                for seat in self._seats()
            ]
            both = isinstance(self._plan(entry, seats, 0.0), paging.Evict)
        if both:
            loaded = self.load(name, new)
            self._drop(present)
            return loaded
        self._drop(present)
        try:
            return self.load(name, new)
        except ServingError:
            with contextlib.suppress(ServingError):
                self.load(name, old)
            raise

    def relieve(self, name: str, version: int, error: BaseException) -> ServingError | None:
        """A call of this model ended with `error` for want of memory: evict what is idle. None if
        that may help and the call can be tried once more, else the answer."""
        missing = failures.asked(error)
        if self._relieve((name, version), max(missing, MiB)):
            return None
        return self._exhausted(name, version, missing)

    def sweep(self) -> list[Key]:
        """Unload what has gone unused for longer than it may, and note what was needed for
        computing. To be called now and then, once a second or so; what was unloaded."""
        now = self._clock()
        with self._lock:
            seats = self._seats()
        peak = self._meter.take_peak()
        if peak is not None and not self._turn.locked():
            self._reserve.note(max(0, peak - sum(seat.bytes for seat in seats)), now)
        keys = paging.expired(seats, now)
        self._evict(keys)
        return cast("list[Key]", keys)

    def statistics(self) -> list[Statistics]:
        """All that are known, by name and version."""
        now = self._clock()
        with self._lock:
            entries = sorted(self._entries.values(), key=lambda entry: entry.key)
            return [self._statistics(entry, now) for entry in entries]

    def memory(self) -> dict[str, int | None]:
        """Bytes: the limit, what models hold, and what is left free for computing."""
        with self._lock:
            held = sum(seat.bytes for seat in self._seats())
        return {"limit": self._meter.limit, "models": held, "reserve": self._reserve.bytes}

    def close(self) -> None:
        """Unload everything."""
        for key in list(self._entries):
            self.forget(*key)
        if self._cache:
            shutil.rmtree(self._cache, ignore_errors=True)

    def _relieve(self, key: Key, missing: int) -> bool:
        """Evict idle models that have so many bytes, and leave as much more free from now on. The
        allocator cuts no chunk of memory that leaves less than 128 MiB over, if it is not twice
        what is asked: so in a small pool memory may be out though the figures say that it is not.
        """
        now = self._clock()
        self._reserve.note(self._reserve.bytes + missing, now)
        with self._lock:
            seats = [seat for seat in self._seats() if seat.key != key]
            idle = [seat for seat in seats if not seat.busy and not seat.pinned]
            taken = sum(seat.bytes for seat in idle)
            plan = paging.plan(min(missing, taken), taken, 0, idle, now)
        keys = plan.keys if isinstance(plan, paging.Evict) else ()
        self._evict(keys)
        return bool(keys)

    def _entry(self, name: str, version: int) -> _Entry:
        entry = self._entries.get((name, version))
        if entry is None:
            raise _unknown(name, version)
        return entry

    def _load(self, entry: _Entry, began: float) -> Loaded:
        opening = self._opening(entry)
        with self._room(entry, began) as handed_over:
            try:
                return self._open(entry, opening, handed_over)
            except BaseException as error:
                if not failures.out_of_memory(error):
                    raise failures.explained(error, entry.path) from error
                if not self._relieve(entry.key, entry.bytes):
                    raise self._exhausted(*entry.key, failures.asked(error)) from error
            try:
                return self._open(entry, self._opening(entry), handed_over)
            except BaseException as error:
                if failures.out_of_memory(error):
                    raise self._exhausted(*entry.key, failures.asked(error)) from error
                raise failures.explained(error, entry.path) from error

    def _opening(self, entry: _Entry) -> Opening:
        kind = sources.kind(entry.path, entry.options)
        if kind == sources.FUNCTION:
            return FunctionOpening(entry.path, entry.options)
        if kind == sources.KERAS:
            if not self._cache:
                self._cache = tempfile.mkdtemp(prefix="sublet-keras-")
            return KerasOpening(entry.path, entry.options, self._cache)
        return SavedModelOpening(entry.path, entry.options)

    @contextlib.contextmanager
    def _room(self, entry: _Entry, began: float) -> Iterator[Callable[[], bool]]:
        """Have the turn, and the memory that the model will take. What is yielded gives the turn
        to others early, and tells whether it was given."""
        self._turn.acquire()
        early = False

        def hand_over() -> bool:
            nonlocal early
            if not early:
                early = True
                self._turn.release()
            return early

        try:
            self._make_room(entry, began)
            yield hand_over
        finally:
            if not entry.stuck:
                entry.claimed = 0
            if not early:
                self._turn.release()

    def _make_room(self, entry: _Entry, began: float) -> None:
        while True:
            with self._lock:
                plan = self._plan(entry, self._seats(), self._clock() - began)
                if isinstance(plan, paging.Evict):
                    entry.claimed = entry.bytes
            if isinstance(plan, paging.Evict):
                self._evict(plan.keys)
                return
            if isinstance(plan, paging.Never):
                raise self._exhausted(*entry.key, 0)
            time.sleep(_LOOK)

    def _plan(self, entry: _Entry, seats: list[paging.Seat], waited: float) -> paging.Plan:
        limit = self._meter.limit
        if limit is None:
            return paging.Evict()
        return paging.plan(entry.bytes, limit, self._reserve.bytes, seats, self._clock(), waited)

    def _open(self, entry: _Entry, opening: Opening, hand_over: Callable[[], bool]) -> Loaded:
        """Load in a thread of its own, for a load that never ends must not take this one along."""
        name, version = entry.key
        limit = float(entry.options.get("load_timeout") or LOAD_TIMEOUT)
        self._told("loading", name, version, {"bytes": entry.claimed})
        before, began = self._meter.held(), time.monotonic()
        attempt = _Attempt(opening, entry, self._abandoned)
        alone = attempt.wait(min(_SLOW, limit)) or not hand_over()
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
            loaded = Loaded(name, version, attempt.opened, entry.seconds, entry.bytes)
            entry.loaded = loaded
        self._told("loaded", name, version, {"bytes": loaded.bytes, "seconds": loaded.seconds})
        return loaded

    def _abandoned(self, entry: _Entry) -> None:
        """A load that was given up has ended after all."""
        with self._lock:
            entry.stuck, entry.claimed = False, 0

    def _note_failure(self, entry: _Entry, error: ServingError) -> None:
        first, most = _RETRY
        with self._lock:
            if error.code != Code.RESOURCE_EXHAUSTED:
                # Room comes and goes; a model that is broken stays so for a while.
                entry.error = error
                entry.retry = self._clock() + min(most, first * 2**entry.failures)
                entry.failures += 1
        self._told("failed", *entry.key, {"code": int(error.code), "error": error.message})

    def _evict(self, keys: Iterable[Hashable]) -> None:
        for key in keys:
            entry = self._entries.get(cast("Key", key))
            if entry is not None:
                self._drop(entry)

    def _drop(self, entry: _Entry) -> None:
        with self._lock:
            loaded, entry.loaded = entry.loaded, None
        if loaded is not None:
            loaded.opened.close()
            self._told("unloaded", *entry.key, {"bytes": loaded.bytes})

    def _seats(self) -> list[paging.Seat]:
        """All that takes memory. What is being loaded is as good as pinned."""
        return [
            paging.Seat(
                entry.key,
                entry.claimed or entry.bytes,
                entry.seconds,
                entry.since,
                entry.habit,
                busy=bool(entry.claimed) or self._busy(*entry.key),
                pinned=bool(entry.options.get("pin")) or entry.stuck,
                hold=float(entry.options.get("hold_seconds") or 0.0),
                turn=float("inf") if entry.claimed else max(1.0, _TURN * entry.seconds),
                idle=float(entry.options.get("idle_seconds") or 0.0),
            )
            for entry in self._entries.values()
            if entry.loaded is not None or entry.claimed
        ]

    def _exhausted(self, name: str, version: int, missing: int) -> ServingError:
        """No room, even with all idle models gone: how much there would have to be."""
        entry = self._entries.get((name, version))
        with self._lock:
            fixed = sum(s.bytes for s in self._seats() if s.pinned and (name, version) != s.key)
        own = 0 if entry is None else entry.bytes
        wanted = fixed + own + max(missing, self._reserve.bytes)
        limit = self._meter.limit or 0
        wanted = -(-max(wanted, limit + missing) // (64 * MiB)) * 64 * MiB
        return ServingError(
            f"{name} version {version} needs about {format_bytes(own + missing)}, and the engine "
            f"has {format_bytes(limit)}, of which pinned models hold {format_bytes(fixed)}. "
            f"Give it more: memory={wanted // MiB}MiB.",
            Code.RESOURCE_EXHAUSTED,
        )

    def _statistics(self, entry: _Entry, now: float) -> Statistics:
        state = "ready" if entry.loaded is not None else "known"
        if entry.stuck:
            state = "stuck"
        elif entry.claimed:
            state = "loading"
        elif entry.loaded is None and entry.error is not None:
            state = "failed"
        used = entry.habit.used
        return Statistics(
            *entry.key,
            state=state,
            bytes=entry.bytes,
            measured=entry.measured is not None,
            seconds=entry.seconds,
            loads=entry.loads,
            uses=entry.uses,
            idle=None if used is None else max(0.0, now - used),
            pinned=bool(entry.options.get("pin")),
            error="" if entry.error is None else entry.error.message,
        )


class _Attempt:
    """One loading in a thread of its own, warm-up included."""

    def __init__(self, opening: Opening, entry: _Entry, ended_late: Callable[[_Entry], None]):
        self.opened: Opened | None = None
        self.error: BaseException | None = None
        self._opening = opening
        self._entry = entry
        self._ended_late = ended_late
        self._given_up = False
        self._deciding = threading.Lock()
        self._done = threading.Event()
        threading.Thread(target=self._run, name=f"load {entry.key[0]}", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        return self._done.wait(max(0.0, seconds))

    def stop(self) -> bool:
        """Time is up. Whether the thread has ended."""
        # TensorFlow waits for what it cancels, and that may have no end.
        threading.Thread(target=self._opening.cancel, name="cancel", daemon=True).start()
        self.wait(_GRACE)
        with self._deciding:
            self._given_up = not self._done.is_set()
            if self.opened is None and not self._given_up:
                # What a cancelled load says is not why it failed.
                self.error = None
            return not self._given_up

    def _run(self) -> None:
        opened = error = None
        try:
            opened = self._opening.run()
            options = self._entry.options
            if options.get("warm_up", True):
                warm_up(self._entry.path, opened.signatures, options.get("warm_up_rows") or ())
        except BaseException as wrong:
            error = wrong
            if opened is not None:
                opened.close()
                opened = None
        with self._deciding:
            self.opened, self.error = opened, error
            self._done.set()
            late = self._given_up
        if late:
            if opened is not None:
                opened.close()
            self._ended_late(self._entry)


def _unknown(name: str, version: int) -> ServingError:
    return ServingError(
        f"Servable not found for request: Specific({name}, {version})", Code.NOT_FOUND
    )
