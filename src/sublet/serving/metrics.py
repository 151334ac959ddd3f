"""What was counted, and how Prometheus reads it, with the names and buckets of TF Serving.

A front end counts into its `Tally`; the server adds up those of all front ends, also of those that
have ended, so that no counter goes back.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct, convert, field
from msgspec.structs import replace

from sublet.channel.codes import Code
from sublet.exposition import Spread, histogram, labels, scalars

REQUEST_BOUNDS = tuple(10 * 1.8**power for power in range(33))
"""In microseconds, to about 20 minutes."""
QUEUE_BOUNDS = tuple(100 * 1.2**power for power in range(52))  # In microseconds, to about a second.


class Inferences(Struct):
    """The calls of one version that have gone to an engine."""

    last: int = 0  # When one was answered last: milliseconds since 1970.
    rows: int = 0
    batches: float = 0.0  # Each call adds its share of its batch.
    answered: int = 0
    answered_seconds: float = 0.0
    failed: int = 0
    failed_seconds: float = 0.0
    queued_seconds: float = 0.0
    computed_seconds: float = 0.0

    def answer(self, rows: int, batch: int, seconds: float, queued: float, computed: float) -> None:
        """Count a call that was answered: its rows, those of its batch, and its times."""
        self.last = int(time.time() * 1000)
        self.rows += rows
        self.batches += min(1.0, rows / batch) if batch else 1.0
        self.answered += 1
        self.answered_seconds += seconds
        self.queued_seconds += queued
        self.computed_seconds += computed

    def fail(self, seconds: float) -> None:
        """Count a call that failed."""
        self.failed += 1
        self.failed_seconds += seconds

    def add(self, other: "Inferences") -> None:
        """Count what another front end has counted."""
        self.last = max(self.last, other.last)
        for name in self.__struct_fields__[1:]:
            setattr(self, name, getattr(self, name) + getattr(other, name))


Counts = Mapping[tuple[str, int], Inferences]  # By model and version.


Key = tuple[str, str, str]
_STATES = {"known": "unloaded", "ready": "loaded"}
"""The engine's words for states, and those for people."""


class Tally(Struct):
    """All that one front end has counted."""

    requests: dict[tuple[str, int], int] = field(default_factory=dict)  # By model and code.
    latencies: dict[Key, Spread] = field(default_factory=dict)
    """By model, API and entry point; microseconds."""
    runs: dict[tuple[str, str], Spread] = field(default_factory=dict)
    """By model and API: what the batches took; microseconds."""
    waits: dict[str, Spread] = field(default_factory=dict)
    """By model: until its batch began; microseconds."""
    inferences: dict[tuple[str, int], Inferences] = field(default_factory=dict)
    """By model and version."""

    def request(self, model: str, api: str, entrypoint: str, code: int, seconds: float) -> None:
        counted = (model, code)
        self.requests[counted] = self.requests.get(counted, 0) + 1
        if code == Code.OK:
            key = (model, api, entrypoint)
            if (spread := self.latencies.get(key)) is None:
                spread = self.latencies[key] = Spread.of(REQUEST_BOUNDS)
            spread.add(REQUEST_BOUNDS, seconds * 1e6)

    def batch(self, model: str, api: str, queued: float, computed: float) -> None:
        """Count the times of the batch that an answer was in."""
        if (spread := self.runs.get((model, api))) is None:
            spread = self.runs[(model, api)] = Spread.of(REQUEST_BOUNDS)
            self.waits.setdefault(model, Spread.of(QUEUE_BOUNDS))
        spread.add(REQUEST_BOUNDS, computed * 1e6)
        self.waits[model].add(QUEUE_BOUNDS, queued * 1e6)

    def inference(self, model: str, version: int) -> Inferences:
        """Where the calls of a version are counted."""
        found = self.inferences.get((model, version))
        if found is None:
            found = self.inferences[model, version] = Inferences()
        return found


class Activity(Struct, frozen=True):
    """What an engine counts of a version, by size: place N has amounts below two to the N, of
    microseconds or rows."""

    latencies: list[int] = field(default_factory=list)
    """Of requests: from arrival to answer."""
    computes: list[int] = field(default_factory=list)
    """Of batches: in TensorFlow."""
    sizes: list[int] = field(default_factory=list)
    """Of batches: their rows, up to two to the N."""
    answered: float = 0.0
    computed: float = 0.0
    rows: int = 0


class Sample(Struct, frozen=True):
    """What a version did in a span of time."""

    began: float
    """In a history: how many seconds ago."""
    seconds: float
    requests: int
    batches: int
    rows: int
    median: float
    """Seconds from a request's arrival to its answer."""
    p99: float
    computed: float
    """Seconds of a batch in TensorFlow, on average."""
    waiting: int
    """Rows that waited, at most."""


class Row(Struct, frozen=True):
    """What an engine says about one version of a model."""

    model: str
    version: int
    engine: str = ""
    state: str = "unloaded"
    bytes: int = 0
    load_seconds: float = 0.0
    loads: int = 0
    evictions: int = 0
    requests: int = 0
    waiting: int = 0  # Rows in its queue.
    idle: float | None = None  # Seconds since its last use.
    pinned: bool = False
    error: str = ""  # Why it is not served.
    device: str = ""  # Where the engine is.
    batches: int = 0
    activity: Activity = Activity()
    latest: Sample | None = None
    """The last ten seconds with requests, if they are not long ago."""

    @classmethod
    def read(cls, report: Mapping[str, Any], engine: str, device: str) -> "Row":
        """What an engine on this device reports about one version."""
        row, loaded = convert(report, cls), bool(report.get("loaded"))
        return replace(
            row,
            engine=engine,
            state="loaded" if loaded else _STATES.get(row.state, row.state),
            evictions=row.loads - loaded if row.loads else 0,
            error="",  # It is served, and tried again.
            device=device,
        )


def add(tallies: Iterable[Tally]) -> Tally:
    whole = Tally()
    for tally in tallies:
        for counted, number in tally.requests.items():
            whole.requests[counted] = whole.requests.get(counted, 0) + number
        _merge(whole.latencies, tally.latencies)
        _merge(whole.runs, tally.runs)
        _merge(whole.waits, tally.waits)
        for key, calls in tally.inferences.items():
            whole.inference(*key).add(calls)
    return whole


def exposition(tally: Tally, rows: Iterable[Row], restarts: Mapping[str, int]) -> str:
    """The text that Prometheus reads."""
    lines = scalars(
        ":tensorflow:serving:request_count",
        "counter",
        {
            labels(model_name=model, status=_status(code)): number
            for (model, code), number in sorted(tally.requests.items())
        },
    )
    lines += histogram(
        ":tensorflow:serving:request_latency",
        REQUEST_BOUNDS,
        {
            labels(model_name=model, API=_api(api, where), entrypoint=where.upper()): spread
            for (model, api, where), spread in sorted(tally.latencies.items())
        },
    )
    lines += histogram(
        ":tensorflow:serving:runtime_latency",
        REQUEST_BOUNDS,
        {
            labels(model_name=model, API=api, runtime="TF2"): spread
            for (model, api), spread in sorted(tally.runs.items())
        },
    )
    lines += histogram(
        ":tensorflow:serving:batching_session:queuing_latency",
        QUEUE_BOUNDS,
        # Each model has a queue of its own here.
        {labels(thread_pool_name=model): one for model, one in sorted(tally.waits.items())},
    )
    rows = list(rows)
    for name, kind, amounts in (
        ("sublet_model_memory_bytes", "gauge", {_row(row): row.bytes for row in rows}),
        ("sublet_model_load_seconds", "gauge", {_row(row): row.load_seconds for row in rows}),
        ("sublet_model_loads_total", "counter", {_row(row): row.loads for row in rows}),
        ("sublet_model_evictions_total", "counter", {_row(row): row.evictions for row in rows}),
        (
            "sublet_restarts_total",
            "counter",
            {labels(process=process): number for process, number in sorted(restarts.items())},
        ),
    ):
        lines += scalars(name, kind, amounts)
    lines += scalars("sublet_model_queue_rows", "gauge", {_row(row): row.waiting for row in rows})
    for name, powers, unit, spread in _HISTOGRAMS:
        found = {_row(row): spread(row.activity) for row in rows if row.activity.sizes}
        spreads = {of: _folded(*one, powers) for of, one in found.items()}
        lines += histogram(name, [unit * 2**power for power in powers], spreads)
    return "\n".join(lines) + "\n"


_TIMES, _ROWS = range(4, 28, 2), range(11)
"""Powers of two that bound buckets: 16 µs to 67 s, and 1 to 1024 rows."""
_HISTOGRAMS: tuple[tuple[str, range, float, Callable[[Activity], tuple[list[int], float]]], ...] = (
    ("sublet_model_request_seconds", _TIMES, 1e-6, lambda one: (one.latencies, one.answered)),
    ("sublet_model_batch_seconds", _TIMES, 1e-6, lambda one: (one.computes, one.computed)),
    ("sublet_model_batch_rows", _ROWS, 1.0, lambda one: (one.sizes, one.rows)),
)


def _folded(counts: list[int], total: float, powers: range) -> Spread:
    """Fewer buckets, which end at these powers of two."""
    spread = Spread([0] * (len(powers) + 1), total)
    for place, count in enumerate(counts):
        spread.buckets[bisect_left(powers, place)] += count
    return spread


def _merge(whole: "dict[Any, Spread]", part: "Mapping[Any, Spread]") -> None:
    for key, spread in part.items():
        mine = whole.setdefault(key, Spread([0] * len(spread.buckets)))
        mine.buckets = [a + b for a, b in zip(mine.buckets, spread.buckets, strict=True)]
        mine.total += spread.total


def _row(row: Row) -> str:
    where = {"device": row.device} if row.device else {}
    return labels(model_name=row.model, version=str(row.version), **where)


def _status(code: int) -> str:
    try:
        return Code(code).name
    except ValueError:
        return str(code)


def _api(api: str, entrypoint: str) -> str:
    """TensorFlow Serving writes the API as the client does: small letters in a path."""
    return api.lower() if entrypoint.upper() == "REST" else api
