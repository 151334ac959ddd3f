"""One time line over all programs of a device, in the trace event format of Chrome and Perfetto.

Pure: it is shown the broker's views and what programs have recorded, and makes a document of them.
All times are CLOCK_MONOTONIC in ns; the broker's, which are of the wall clock, are converted.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from sublet.client.snapshot_feed import View
from sublet.units import MiB, format_bytes
from sublet.wire.rows import JobRow

_MOST = 100_000
"""Events of the broker's that are kept."""
_LEASE, _FIRST_TRACK = 1, 10
_DEVICE = 1 << 30
"""Stands for the device where a program has its number."""
_LEASED, _USED, _OTHERS = "leased memory (MiB)", "used memory (MiB)", "memory of others (MiB)"
Event = dict[str, Any]


class Clocks(Struct, frozen=True):
    """One moment in both clocks."""

    wall: float
    tick: int

    def at(self, wall: float) -> int:
        """The tick of a moment of the wall clock."""
        return self.tick + int((wall - self.wall) * 1e9)


class _Span(Struct):
    """What a job is in, and since when."""

    label: str
    since: int


class Trace:
    """The time line, as far as it has been recorded."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._events: list[Event] = []
        self._rows: dict[int, JobRow] = {}
        self._spans: dict[int, _Span] = {}
        self._devices: dict[int, set[str]] = {}
        """Where each job has had a lease."""
        self._tracks: dict[tuple[int, str], int] = {}
        self._measured: set[int] = set()
        """Jobs that have recorded what they use themselves."""
        self._totals: dict[str, tuple[int, ...]] = {}

    def see(self, view: View, at: int) -> None:
        """Note what has changed until this moment."""
        for row in view.jobs.values():
            before = self._rows.get(row.id)
            if row.state == "finished" and (before is None or before.state == "finished"):
                continue
            moment = at
            if row.since is not None and (before is None or before.state != row.state):
                moment = min(at, self._clocks.at(row.since))
            self._see_state(row, before, moment)
            self._see_lease(row, before, moment)
            self._rows[row.id] = row
        for name, device in view.devices.items():
            here = [row for row in view.jobs.values() if name in _places(row)]
            used = sum(row.now or 0 for row in here if row.within is None)
            totals = (device.leased, used, device.strangers)
            if self._totals.get(name) != totals:
                self._totals[name] = totals
                for label, value in zip((_LEASED, _USED, _OTHERS), totals, strict=True):
                    self._add(_counter(label, at, value) | {"device": name})

    def add_part(self, job: int, pid: int, events: Iterable[list[Any]], several: bool) -> None:
        """Add what a process of a program has recorded; `several` if it is not the only one."""
        of = f" of process {pid}" if several else ""
        used: list[Event] = []
        for event in events:
            match event:
                case ["step", str(thread), str(name), int(at), int(took)]:
                    where = "steps" if thread == "MainThread" else f"steps in {thread}"
                    self._slice(job, f"{where}{of}", name, "step", at, took)
                case ["op", str(thread), str(name), int(at), int(took)]:
                    self._slice(job, f"TensorFlow: {thread}{of}", name, "op", at, took)
                case ["memory", int(at), int(value)]:
                    used.append(_counter(f"{_USED}{of}", at, value) | {"pid": job})
        self._events += used
        if used:
            self._measured.add(job)

    def document(self, device: str, until: int) -> bytes:
        """The time line of one device as JSON, up to this moment."""
        jobs = {job for job in self._rows if device in self._devices.get(job, {device})}
        events = [
            one
            for one in self._events
            if (one.get("device") == device if "device" in one else one["pid"] in jobs)
            and not (one["ph"] == "C" and "fed" in one and one["pid"] in self._measured)
        ]
        for job in jobs & self._spans.keys():
            events.append(self._closed(job, until))
        first = min((one["ts"] for one in events), default=until)
        for one in events:
            one["ts"] = (one["ts"] - first) / 1000
            if one.pop("device", None):
                one["pid"] = _DEVICE
            one.pop("fed", None)
        events.sort(key=lambda one: one["ts"])
        began = self._clocks.wall + (first - self._clocks.tick) / 1e9
        about = {"began": began, "device": device, "clock": "CLOCK_MONOTONIC"}
        names = self._names(device, sorted(jobs))
        return msgspec.json.encode(
            {"traceEvents": [*names, *events], "displayTimeUnit": "ms", "otherData": about}
        )

    def _see_state(self, row: JobRow, before: JobRow | None, at: int) -> None:
        label = _label(row)
        if before is None and row.waited and row.ceiling is not None:
            waited = int(row.waited * 1e9)
            self._add(_slice(row.id, _LEASE, "waiting", "lease", at - waited, waited))
        span = self._spans.get(row.id)
        if span is not None and span.label == label:
            return
        if span is not None:
            self._add(self._closed(row.id, at))
        if row.state == "finished":
            self._spans.pop(row.id, None)
        else:
            self._spans[row.id] = _Span(label, at)

    def _see_lease(self, row: JobRow, before: JobRow | None, at: int) -> None:
        self._devices.setdefault(row.id, set()).update(_places(row))
        if not self._devices[row.id]:
            del self._devices[row.id]
        ceiling = None if row.state == "finished" else row.ceiling
        known = None if before is None else before.ceiling
        if ceiling != known:
            self._add(_moved(row, known, ceiling, at))
            self._add(_counter(_LEASED, at, ceiling or 0) | {"pid": row.id})
        used = 0 if row.state == "finished" else row.now
        if used is not None and (before is None or before.now != used):
            self._add(_counter(_USED, at, used) | {"pid": row.id, "fed": True})

    def _closed(self, job: int, until: int) -> Event:
        span = self._spans[job]
        took = max(0, until - span.since)
        return _slice(job, _LEASE, span.label, "lease", span.since, took)

    def _slice(self, job: int, track: str, name: str, kind: str, at: int, took: int) -> None:
        number = self._tracks.setdefault((job, track), _FIRST_TRACK + len(self._tracks))
        self._events.append(_slice(job, number, name, kind, at, max(0, took)))

    def _add(self, event: Event) -> None:
        if len(self._events) < _MOST:
            self._events.append(event)

    def _names(self, device: str, jobs: list[int]) -> list[Event]:
        """The names of processes and tracks, and their order."""
        named = [_name("process", _DEVICE, 0, f"device {device}")]
        named.append(_name("process_sort", _DEVICE, 0, -1))
        for job in jobs:
            named.append(_name("process", job, 0, f"#{job} {self._rows[job].name}"))
            named.append(_name("thread", job, _LEASE, "lease"))
        for (job, track), number in self._tracks.items():
            if job in jobs:
                named.append(_name("thread", job, number, track))
                order = number if track.startswith("steps") else number + _DEVICE
                named.append(_name("thread_sort", job, number, order))
        return named


def _label(row: JobRow) -> str:
    if row.state == "waiting" and row.reason:
        return f"waiting: {row.reason}"
    return row.state


def _places(row: JobRow) -> set[str]:
    """The devices on which a job has a lease."""
    if row.ceiling is None:
        return set()
    return {card.device for card in row.cards} or ({row.device} if row.device else set())


def _moved(row: JobRow, before: int | None, now: int | None, at: int) -> Event:
    if now is None:
        name = f"released {format_bytes(before or 0)}"
    elif before is None:
        name = f"granted {format_bytes(row.floor or now)}"
    else:
        name = f"{'raised' if now > before else 'trimmed'} to {format_bytes(now)}"
    event = {"name": name, "cat": "lease", "ph": "i", "s": "p", "pid": row.id, "tid": _LEASE}
    return event | {"ts": at, "args": {"basis": row.basis}}


def _slice(job: int, track: int, name: str, kind: str, at: int, took: int) -> Event:
    event = {"name": name, "cat": kind, "ph": "X", "pid": job, "tid": track}
    return event | {"ts": at, "dur": took / 1000}


def _counter(name: str, at: int, value: int) -> Event:
    return {
        "name": name,
        "cat": "memory",
        "ph": "C",
        "pid": 0,
        "tid": 0,
        "ts": at,
        "args": {"MiB": round(value / MiB, 3)},
    }


def _name(kind: str, pid: int, tid: int, value: str | int) -> Event:
    if kind.endswith("_sort"):
        return {
            "name": f"{kind}_index",
            "ph": "M",
            "pid": pid,
            "tid": tid,
            "args": {"sort_index": value},
        }
    return {"name": f"{kind}_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": value}}
