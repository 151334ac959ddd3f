"""Trains a sweep's trials that are runs of a program: leased jobs of one array in the queue.

The jobs are the queue's: they outlive this process. A sweep that goes on takes up those that were
submitted for it.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sublet.client.cluster_logs import TaskLog
from sublet.client.jobs import JobWatcher, act, listing, submit_array
from sublet.errors import BadRequest, SubletError
from sublet.sweeps import command, metrics
from sublet.sweeps.driver import Reports
from sublet.sweeps.records import Logs, Sweep, Trial, TrialReached
from sublet.sweeps.search.rung import Copy
from sublet.wire.rows import JobRow

_EVERY = 0.5
"""Seconds between looks at what the programs have written."""


@dataclass(frozen=True)
class ProgramTrials:
    """What all trials have in common."""

    words: tuple[str, ...]
    """The program and its own arguments."""
    arguments: tuple[str, ...]
    """The latter alone."""
    metric: str
    budget: str | None
    """The parameter by which a program is told how many epochs to train; None if it decides."""
    file: str | None
    """Where it leaves its metrics, below the trial's directory; None if it prints them."""
    memory: str
    at_once: int
    options: dict[str, Any]
    """Of the jobs, as `submit_array` takes them."""


class Scripts:
    """The runner of a sweep over runs of a program."""

    def __init__(self, program: ProgramTrials, directory: Path, logs: Path, epochs: int) -> None:
        self._program = program
        self._directory = directory
        self._logs = logs
        self._epochs = epochs
        self._running: dict[int, _Run] = {}
        """By the numbers of their jobs."""
        self.reason = ""
        """Why trials wait."""

    def train(self, trials: Sequence[Trial], until: int, reports: Reports) -> None:
        self._submit([trial for trial in trials if trial.job is None], until, reports)
        current = [reports.sweep.trials[trial.number] for trial in trials]
        self._running = {
            trial.job: _Run(trial.number, self._program, self._place(trial.number), self._logs)
            for trial in current
            if trial.job is not None
        }
        with JobWatcher(tuple(self._running)) as watcher:
            while self._running:
                for row in watcher.changes(time.monotonic() + _EVERY):
                    self._take(row, until, reports)
                for run in self._running.values():
                    run.report(reports)

    def copy(self, copy: Copy) -> None:
        raise BadRequest("Programs cannot take over weights.", 'Use "halving" or "random".')

    def prune(self, trials: Sequence[int]) -> None:
        """Nothing to do: their programs have ended."""

    def rung_ended(self, sweep: Sweep) -> None:
        """Nothing to keep."""

    def cancel(self) -> list[int]:
        """Cancel the jobs that have not ended; their numbers."""
        numbers = list(self._running)
        with contextlib.suppress(SubletError):
            rows = listing(tuple(numbers)).rows if numbers else ()
            live = [row.id for row in rows if row.state != "finished"]
            if live:
                act("cancel", live)
            return live
        return []

    def _place(self, number: int) -> Path:
        return self._directory / "trials" / f"{number:03}"

    def _submit(self, trials: Sequence[Trial], until: int, reports: Reports) -> None:
        if not trials:
            return
        program = self._program
        arguments = []
        for trial in trials:
            place = self._place(trial.number)
            place.mkdir(parents=True, exist_ok=True)
            budget = {} if program.budget is None else {program.budget: until}
            own = {**trial.params, **budget}
            arguments.append(command.arguments(program.arguments, own, trial.number, place))
        jobs = submit_array(
            program.words,
            [trial.number for trial in trials],
            program.memory,
            at_once=program.at_once,
            arguments=arguments,
            **program.options,
        )
        for trial, job in zip(trials, jobs, strict=True):
            reports.job(trial.number, job.id)

    def _take(self, row: JobRow, until: int, reports: Reports) -> None:
        """A job has come into another state."""
        run = self._running.get(row.id)
        if run is None:
            return
        self.reason = row.reason if row.state == "waiting" else ""
        run.row = row
        if row.state != "finished":
            return
        del self._running[row.id]
        run.report(reports, last=True)
        trial = reports.sweep.trials[run.number]
        if row.code != 0:
            reports.ended(run.number, "failed", error=row.reason or f"exit code {row.code}")
        elif run.count == 0:
            said = self._program.file or "its output"
            reports.ended(
                run.number, "failed", error=f"no {self._program.metric} in {said} (job {row.id})"
            )
        else:
            value = trial.value
            reports.append([TrialReached(run.number, until, value, time.time())])
            if until >= self._epochs:
                reports.ended(run.number, "done")


class _Run:
    """A running program, and what it has reported."""

    def __init__(self, number: int, program: ProgramTrials, place: Path, logs: Path) -> None:
        self.number = number
        self.count = 0
        """Reports so far."""
        self.row: JobRow | None = None
        self._log = TaskLog(logs)
        self._printed = metrics.Printed(program.metric)
        self._metric = program.metric
        self._file = None if program.file is None else place / program.file

    def report(self, reports: Reports, last: bool = False) -> None:
        """Tell what it has reported since the last look."""
        if self.row is None or self.row.attempt == 0:
            return
        found = self._printed_logs(last) if self._file is None else self._file_logs()
        if found:
            reports.epochs(self.number, self.count + 1, found)
            self.count += len(found)

    def _file_logs(self) -> list[Logs]:
        assert self._file is not None
        every = [one for one in metrics.in_file(self._file, self._metric) if self._metric in one]
        if len(every) < self.count:
            self.count = 0  # It was written anew.
        return every[self.count :]

    def _printed_logs(self, last: bool) -> list[Logs]:
        assert self.row is not None
        left = list(self._log.follow(self.row))
        if left:
            self.count = 0  # Another attempt begins again.
        lines: Iterator[str] = self._log.close() if last else self._log.read()
        return [logs for line in lines if (logs := self._printed.of(line)) is not None]
