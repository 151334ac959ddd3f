"""Watches programs that were given all there was, and has their leases trimmed when they settle.

Reads the workers' usage files and writes the new ceiling beside them. A lease counts as trimmed
when the worker has confirmed it, never when it was asked; the broker applies it then.
"""

from pathlib import Path

from sublet.domain.job import Job, Running
from sublet.domain.memory import Grow
from sublet.formats import attempt_files
from sublet.formats.usage_file import read_usage
from sublet.policy.trimming import Sample, thinned, trimmed
from sublet.units import MiB


class Trimmer:
    """Samples the jobs that may be trimmed; call `look` now and then."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._samples: dict[str, list[Sample]] = {}
        self._asked: dict[str, int] = {}

    def watches(self, holding: list[Job]) -> bool:
        """Whether there is anything to look at."""
        return any(_may_be_trimmed(job) for job in holding)

    def look(self, holding: list[Job], now: float) -> list[tuple[Job, int]]:
        """Take a sample of each; the jobs whose worker has confirmed a smaller ceiling, and it."""
        watched = {job.attempt_id: job for job in holding if _may_be_trimmed(job)}
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
        directory = str(self._runs / job.attempt_id)
        usages = [usage for usage in read_usage(directory) if usage.runtime_started_ns]
        if len(usages) != 1:
            # Each process has a pool of its own, and the ceiling is for each: nothing to share out.
            return None
        (usage,) = usages
        asked = self._asked.get(job.attempt_id)
        if asked is not None:
            return asked if usage.limit == asked else None
        samples = [*self._samples.get(job.attempt_id, ()), Sample(now, usage.current, usage.peak)]
        self._samples[job.attempt_id] = thinned(samples)
        ceiling = trimmed(samples, job.lease.ceiling)
        if ceiling is not None:
            self._asked[job.attempt_id] = ceiling // MiB * MiB
            attempt_files.write_ceiling(directory, self._asked[job.attempt_id])
        return None


def _may_be_trimmed(job: Job) -> bool:
    """All that was free was given, and it was not trimmed yet.

    A notebook that stands still has not settled: its owner reads.
    """
    return (
        isinstance(job.spec.memory, Grow)
        and job.spec.in_process is None
        and isinstance(job.state, Running)
        and not job.state.lease.trimmed
    )
