"""Follows a cluster to its end: rows and lines of its tasks."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from sublet.client.cluster_logs import TaskLog
from sublet.client.jobs import JobWatcher
from sublet.wire.rows import JobRow

_EVERY = 0.1
"""Seconds between looks at what the tasks have written."""


def title(row: JobRow) -> str:
    """A task by its name, such as "worker 1 (#14)"."""
    return f"{row.role} {row.role_index} (#{row.id})"


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

    def __init__(self, numbers: Sequence[int], logs: Path, listener: Listener) -> None:
        self.rows: dict[int, JobRow] = {}
        self._numbers = numbers
        self._listener = listener
        self._logs = {number: TaskLog(logs) for number in numbers}
        self._told: set[tuple[int, str]] = set()
        """What was said of the tasks, by attempt: once for all of which it is true."""

    def run(self) -> list[JobRow]:
        """Follow it until all tasks have finished."""
        with JobWatcher(self._numbers) as watcher:
            while not self._over():
                for row in watcher.changes(time.monotonic() + _EVERY):
                    self._take(row)
                for number in self.rows:
                    self._show(number)
        for number, log in self._logs.items():
            for text in log.close():
                self._listener.line(self.rows[number], text)
        return [self.rows[number] for number in self._numbers]

    def last_lines(self, number: int, count: int) -> list[str]:
        """What a task wrote last."""
        return list(self._logs[number].last)[-count:]

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
        if row.state == "running" and row.reason and (row.attempt, row.reason) not in self._told:
            self._told.add((row.attempt, row.reason))
            self._listener.warns(f"{title(row)} {row.reason}")

    def _show(self, number: int) -> None:
        for text in self._logs[number].read():
            self._listener.line(self.rows[number], text)
