"""Follows a cluster to its end: rows and lines of its tasks, and what is wrong with them."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from sublet.client.cluster_logs import TaskLog
from sublet.client.cluster_watch import ClusterWatch, culprits, title
from sublet.client.jobs import JobWatcher
from sublet.wire.rows import JobRow

_EVERY = 0.1
"""Seconds between looks at what the tasks have written."""
_LOOK = 0.5
"""Seconds between looks at ports and processes, which cost more."""
_DUMP = 1.0
"""Seconds in which a task that was asked for its stacks writes them."""


class Listener(Protocol):
    """Who shows what a cluster does."""

    def line(self, row: JobRow, text: str) -> None:
        """A task has written a line."""

    def changed(self, before: JobRow | None, now: JobRow) -> None:
        """A task has come into another state."""

    def warns(self, sentence: str) -> None:
        """Something is wrong with the cluster."""


class ClusterFollower:
    """The tasks of one cluster, as far as they are known."""

    def __init__(
        self, numbers: Sequence[int], logs: Path, listener: Listener, patience: float
    ) -> None:
        """`patience`: seconds after which a cluster that stands still is looked into."""
        self.rows: dict[int, JobRow] = {}
        self._numbers = numbers
        self._listener = listener
        self._logs = {number: TaskLog(logs) for number in numbers}
        self._watch = ClusterWatch(patience)
        self._dump_due = 0.0
        self._looked = 0.0
        self._moved = False
        """Whether there was output since the last look."""

    def run(self) -> list[JobRow]:
        """Follow it until all tasks have finished."""
        with JobWatcher(self._numbers) as watcher:
            while not self._over():
                for row in watcher.changes(time.monotonic() + _EVERY):
                    self._take(row)
                self._moved = self._show_lines() or self._moved
                if time.monotonic() >= self._looked + _LOOK:
                    self._look()
        for number, log in self._logs.items():
            for text in log.close():
                self._listener.line(self.rows[number], text)
        return [self.rows[number] for number in self._numbers]

    def last_lines(self, number: int, count: int) -> list[str]:
        """What a task wrote last."""
        return list(self._logs[number].last)[-count:]

    def unused(self) -> list[JobRow]:
        """Tasks that have ended well, and were never seen to open their ports."""
        return self._watch.unused(self.rows.values())

    def _over(self) -> bool:
        known = [self.rows.get(number) for number in self._numbers]
        return all(row is not None and row.state == "finished" for row in known)

    def _take(self, row: JobRow) -> None:
        before = self.rows.get(row.id)
        self.rows[row.id] = row
        for text in self._logs[row.id].follow(row):
            self._listener.line(row, text)
        if before is None or (before.state, before.attempt) != (row.state, row.attempt):
            # What it wrote comes before what became of it.
            self._show(row.id)
            self._listener.changed(before, row)

    def _show_lines(self) -> bool:
        """Show what all tasks have written; whether there was anything."""
        return sum(self._show(number) for number in self.rows) > 0

    def _show(self, number: int) -> bool:
        lines = list(self._logs[number].read())
        for text in lines:
            self._listener.line(self.rows[number], text)
        return bool(lines)

    def _look(self) -> None:
        """See whether something is wrong with the tasks."""
        if len(self.rows) < len(self._numbers):
            return
        now, moved, self._moved = time.monotonic(), self._moved, False
        self._looked = now
        for sentence in self._watch.look([self.rows[n] for n in self._numbers], now, moved):
            self._listener.warns(sentence)
            self._dump_due = now + _DUMP
        if self._watch.asked and now >= self._dump_due:
            stacks = {number: list(self._logs[number].last) for number in self._watch.asked}
            self._watch.asked = set()
            for number, frame in culprits(stacks).items():
                self._listener.warns(
                    f"{title(self.rows[number])} is at {frame}; the others wait in TensorFlow"
                )
