"""Sends a trace of each job: how long it waited, started and ran, in each of its attempts.

    job ────────────────────────────────────
      wait ──────  start ─  run ────────────

It follows the broker like `sublet top` does, and starts none. What ended before it began to follow
is not told.
"""

import contextlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sublet.client.connection import connect
from sublet.client.snapshot_feed import View, follow_connection
from sublet.errors import SubletError
from sublet.home import Home
from sublet.text import plain
from sublet.units import shorten
from sublet.wire.rows import EventRow, JobRow

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_LOOK = 1.0
"""Seconds between looks for a broker."""
_NANO = 1e9
_MOST = 10_000
"""Jobs that are followed at a time."""
_LONGEST_NAME = 200
_PHASES = {
    "waiting": "wait",
    "starting": "start",
    "running": "run",
    "stopping": "stop",
    "paused": "pause",
}


@dataclass
class _Open:
    """The spans of a job that has not ended."""

    job: "Span"
    phase: "Span | None" = None
    state: str = ""


class JobTraces:
    """Makes spans of views. Used by one thread."""

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer
        self._open: dict[int, _Open] = {}

    def take(self, view: View) -> None:
        """What has happened since the view before; of the first, who is there."""
        for event in view.events:
            self._note(event, view.jobs.get(event.job))
        for row in view.jobs.values():
            if row.state != "finished" and row.id not in self._open:
                self._begin(row, row.since if row.since is not None else row.submitted)

    def forget(self) -> None:
        """The broker has gone: whoever still runs is seen again with the next."""
        self._open.clear()

    def _note(self, event: EventRow, row: JobRow | None) -> None:
        if row is not None and event.job not in self._open and event.state != "waiting":
            # It was in the queue no longer than a turn of the broker.
            self._begin(row, row.submitted, "waiting")
        found = self._open.get(event.job)
        if found is None:
            return
        if event.state == "finished":
            self._end(self._open.pop(event.job), event, row)
        elif event.state != found.state:
            self._enter(found, event.state, event.at, event.attempt)

    def _begin(self, row: JobRow, at: float, state: str = "") -> None:
        if len(self._open) >= _MOST:
            return
        name = plain(shorten(row.name, _LONGEST_NAME))
        span = self._tracer.start_span(
            "job",
            attributes={"sublet.job.id": row.id, "sublet.job.name": name},
            start_time=int(row.submitted * _NANO),
        )
        self._open[row.id] = found = _Open(span)
        self._enter(found, state or row.state, at, row.attempt)

    def _enter(self, found: _Open, state: str, at: float, attempt: int) -> None:
        from opentelemetry.trace import set_span_in_context

        if found.phase is not None:
            found.phase.end(int(at * _NANO))
        found.state = state
        found.phase = self._tracer.start_span(
            _PHASES.get(state, state),
            set_span_in_context(found.job),
            attributes={"sublet.attempt": attempt},
            start_time=int(at * _NANO),
        )

    def _end(self, found: _Open, event: EventRow, row: JobRow | None) -> None:
        from opentelemetry.trace import Status, StatusCode

        if found.phase is not None:
            found.phase.end(int(event.at * _NANO))
        if row is not None:
            found.job.set_attributes(dict(_facts(row)))
            ended_well = row.by_user or (row.cause == "exited" and row.code == 0)
            if not ended_well and row.cause != "cancelled":
                found.job.set_status(Status(StatusCode.ERROR, plain(row.reason[:_LONGEST_NAME])))
        found.job.end(int(event.at * _NANO))


def _facts(row: JobRow) -> Iterable[tuple[str, str | int]]:
    facts = {
        "sublet.device": row.device,
        "sublet.cause": row.cause,
        "sublet.exit_code": row.code,
        "sublet.start": row.how.partition(":")[0] or None,
        "sublet.lease_bytes": row.ceiling,
        "sublet.peak_bytes": row.peak,
        "sublet.attempts": row.attempt,
    }
    return ((name, value) for name, value in facts.items() if value is not None)


def follow(home: Home, traces: JobTraces, closed: threading.Event) -> None:
    """Follow one broker after the other, until closed."""
    while not closed.is_set():
        with contextlib.suppress(SubletError, OSError):
            connection = connect(home)
            if connection is not None:
                with contextlib.closing(connection):
                    for view in follow_connection(connection):
                        traces.take(view)
                        if closed.is_set():
                            return
                traces.forget()
        closed.wait(_LOOK)
