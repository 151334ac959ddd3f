"""Leads a sweep: asks the search for a rung, has its trials trained, and writes down what happens.

Knows nothing of how trials are trained: `Runner` does, for models or for programs.
"""

import time
from collections.abc import Sequence
from typing import Protocol

from sublet.sweeps import records
from sublet.sweeps.journal import Journal
from sublet.sweeps.records import Event, Logs, Sweep, Trial
from sublet.sweeps.search.rung import Copy, Rung, Search


class Watcher(Protocol):
    """Is told of each change; a progress table, for example."""

    def changed(self, sweep: Sweep) -> None: ...


class Reports:
    """What a runner says of its trials; each word is in the journal before the call returns."""

    def __init__(self, journal: Journal, watcher: Watcher) -> None:
        self._journal = journal
        self._watcher = watcher

    def epochs(self, trial: int, first: int, logs: Sequence[Logs]) -> None:
        """A trial has trained these epochs, the first of which has this number."""
        now = time.time()
        self.append(
            [records.EpochEnded(trial, first + place, one, now) for place, one in enumerate(logs)]
        )

    def ended(
        self, trial: int, state: records.TrialState, value: float | None = None, error: str = ""
    ) -> None:
        """A trial is over."""
        self.append([records.TrialEnded(trial, state, time.time(), value, error)])

    def way(self, group: str, way: str, trials: int, why: str) -> None:
        """The trials of one architecture are trained so."""
        self.append([records.WayChosen(group, way, trials, why, time.time())])

    def job(self, trial: int, number: int) -> None:
        """The program of a trial is in the queue."""
        self.append([records.JobStarted(trial, number, time.time())])

    def append(self, events: Sequence[Event]) -> None:
        """Write events down, and tell of them."""
        self._journal.append(events)
        self._watcher.changed(self._journal.sweep)

    @property
    def sweep(self) -> Sweep:
        """The sweep as it is now."""
        return self._journal.sweep


class Runner(Protocol):
    """Trains trials. It reports epochs and ends; a trial that reaches the sweep's last epoch, or
    fails, has ended."""

    def train(self, trials: Sequence[Trial], until: int, reports: Reports) -> None:
        """Train these up to an epoch; those that are over, and new ones, from where they are."""

    def copy(self, copy: Copy) -> None:
        """Let a trial go on with the weights of another one."""

    def prune(self, trials: Sequence[int]) -> None:
        """These end here."""

    def rung_ended(self, sweep: Sweep) -> None:
        """All trials of a rung have reached its end; `sweep` is where they are now."""


def lead(journal: Journal, search: Search, runner: Runner, watcher: Watcher) -> Sweep:
    """Run the sweep to its end, from wherever its journal is."""
    reports = Reports(journal, watcher)
    watcher.changed(journal.sweep)
    while True:
        rung = journal.sweep.rung
        left = [] if rung is None else _left(journal.sweep)
        if rung is None or not left:
            following = search.next(journal.sweep.trials)
            if following is None:
                break
            _begin(following, journal, runner, reports)
            continue
        runner.train(left, rung.until, reports)
        _settle(reports)
        runner.rung_ended(journal.sweep)
    # Whoever is not over was left behind by the search.
    _prune([trial.number for trial in journal.sweep.trials if not trial.over], runner, reports)
    reports.append([records.SweepEnded(time.time())])
    return journal.sweep


def _left(sweep: Sweep) -> list[Trial]:
    """The trials of the current rung that have not reached its end."""
    assert sweep.rung is not None
    chosen = [sweep.trials[number] for number in sweep.rung.trials]
    return [trial for trial in chosen if not trial.over and trial.epochs < sweep.rung.until]


def _begin(rung: Rung, journal: Journal, runner: Runner, reports: Reports) -> None:
    """Write a rung down, with its new trials and copies, and prune whoever has no part in it."""
    now = time.time()
    count = len(journal.sweep.trials)
    fresh = tuple(range(count, count + len(rung.new)))
    chosen = (*rung.go_on, *fresh)
    events: list[Event] = [
        records.TrialBegan(number, params, now)
        for number, params in zip(fresh, rung.new, strict=True)
    ]
    lost = [
        trial.number
        for trial in journal.sweep.trials
        if not trial.over and trial.number not in rung.go_on
    ]
    _prune(lost, runner, reports)
    for copy in rung.copies:
        runner.copy(copy)
        events.append(
            records.ParamsChanged(
                copy.target,
                copy.source,
                copy.params,
                journal.sweep.trials[copy.target].epochs,
                now,
            )
        )
    reports.append([*events, records.RungBegan(chosen, rung.until, now)])


def _prune(numbers: Sequence[int], runner: Runner, reports: Reports) -> None:
    if numbers:
        runner.prune(numbers)
        now = time.time()
        reports.append([records.TrialEnded(number, "pruned", now) for number in numbers])


def _settle(reports: Reports) -> None:
    """A trial that has trained all epochs is done, whoever forgot to say so."""
    now = time.time()
    reports.append(
        [
            records.TrialEnded(trial.number, "done", now)
            for trial in reports.sweep.trials
            if not trial.over and trial.epochs >= reports.sweep.settings.epochs
        ]
    )
