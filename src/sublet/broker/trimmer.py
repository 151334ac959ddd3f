"""Watches programs that were given all there was, and has their leases trimmed when they settle.

Reads boards and writes the new ceiling beside them; what it says has changed is the broker's to
apply. A lease counts as trimmed when the worker has confirmed it, never when it was asked.
"""

from pathlib import Path

from sublet.domain.job import Job, Running
from sublet.domain.memory import Grow
from sublet.formats import attempt_files
from sublet.formats.usage_file import read_usage
from sublet.policy.trimming import Sample, thinned, trimmed
from sublet.units import MiB


class Trimmer:
    """One for each broker; call `look` now and then with the jobs that hold leases."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._samples: dict[str, list[Sample]] = {}
        self._asked: dict[str, int] = {}

    def watches(self, holding: list[Job]) -> bool:
        """Whether there is anything to look at."""
        return any(_may_be_trimmed(job) for job in holding)

    def look(self, holding: list[Job], now: float) -> list[tuple[Job, int]]:
        """Take a sample of each; the jobs whose worker has confirmed a smaller ceiling, and it."""
        watched = {job.run: job for job in holding if _may_be_trimmed(job)}
        for gone in self._samples.keys() - watched.keys():
            del self._samples[gone]
            self._asked.pop(gone, None)
        return [
            (job, ceiling)
            for job in watched.values()
            if (ceiling := self._look_at(job, now)) is not None
        ]

    def _look_at(self, job: Job, now: float) -> int | None:
        assert job.lease is not None
        directory = str(self._runs / job.run)
        boards = [board for board in read_usage(directory) if board.runtime_started_ns]
        if len(boards) != 1:
            # Each process has a pool of its own, and the ceiling is for each: nothing to share out.
            return None
        (board,) = boards
        asked = self._asked.get(job.run)
        if asked is not None:
            return asked if board.limit == asked else None
        samples = [*self._samples.get(job.run, ()), Sample(now, board.current, board.peak)]
        self._samples[job.run] = thinned(samples)
        ceiling = trimmed(samples, job.lease.ceiling)
        if ceiling is not None:
            self._asked[job.run] = ceiling // MiB * MiB
            attempt_files.write_ceiling(directory, self._asked[job.run])
        return None


def _may_be_trimmed(job: Job) -> bool:
    """All that was free was given, and it was not trimmed yet.

    A notebook that stands still has not settled: its owner reads.
    """
    return (
        isinstance(job.spec.memory, Grow)
        and job.spec.lodger is None
        and isinstance(job.state, Running)
        and not job.state.lease.trimmed
    )
