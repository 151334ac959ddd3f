"""What one version of a model has done: amounts by size, and samples of the last day.

Noted once for each batch, under the scheduler's lock, so it is cheap: sizes are powers of two,
which a number's length in bits tells. Samples are made of it as time goes by.
Pure: times are seconds of one clock, given by the caller.
"""

import dataclasses
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .requests import Part

_SIZES = 64
_MICRO = 1e6
_PERIODS = ((10.0, 360), (300.0, 288))
"""Seconds of a sample, and how many are kept: an hour of short ones, a day of long ones."""
_HALF, _NEARLY_ALL = 0.5, 0.99


class Sample(NamedTuple):
    """What was done in a span of time. Nothing was in spans that have none."""

    began: float
    seconds: float
    requests: int
    batches: int
    rows: int
    median: float
    """Seconds from a request's arrival to its answer: of the faster half, at most."""
    p99: float
    """The same of all but one in a hundred."""
    computed: float
    """Seconds of a batch in TensorFlow, on average."""
    waiting: int
    """Rows that waited, at most."""


@dataclasses.dataclass(slots=True)
class _Sums:
    """Amounts by size. Place N has those below two to the N; each is counted once."""

    latencies: list[int]
    computes: list[int]
    sizes: list[int]
    answered: float = 0.0
    computed: float = 0.0
    rows: int = 0

    @classmethod
    def none(cls) -> "_Sums":
        return cls([0] * _SIZES, [0] * _SIZES, [0] * _SIZES)

    def copy(self) -> "_Sums":
        return dataclasses.replace(
            self,
            latencies=list(self.latencies),
            computes=list(self.computes),
            sizes=list(self.sizes),
        )


class Activity:
    """Of one version, since the engine knows it."""

    def __init__(self) -> None:
        self.waiting = 0
        """Rows that waited at most, since that was last set to 0: by the queue."""
        self._sums = _Sums.none()
        self._periods = [_Period(*one) for one in _PERIODS]

    def note(self, parts: Iterable[Part], rows: int, seconds: float, now: float) -> None:
        """A batch is done now. A request that was split counts with its last part."""
        if now >= self._periods[0].due:
            self._sample(now)
        sums = self._sums
        latencies, total = sums.latencies, 0.0
        for request, _, stop in parts:
            if stop >= request.rows and request.started:
                answered = now - request.arrived
                latencies[int(answered * _MICRO).bit_length()] += 1
                total += answered
        sums.answered += total
        sums.computes[int(seconds * _MICRO).bit_length()] += 1
        sums.computed += seconds
        # One row more would be in the next place, two to the N is still in this one.
        sums.sizes[max(0, rows - 1).bit_length()] += 1
        sums.rows += rows

    def report(self) -> dict[str, Any]:
        """Everything since the beginning, for counters that only grow."""
        sums = self._sums
        return {
            "latencies": _trimmed(sums.latencies),
            "computes": _trimmed(sums.computes),
            "sizes": _trimmed(sums.sizes),
            "answered": sums.answered,
            "computed": sums.computed,
            "rows": sums.rows,
        }

    def latest(self, now: float) -> Sample | None:
        """The last short sample, if it is not long ago."""
        self._sample(now)
        samples = self._periods[0].samples
        lately = bool(samples) and now - samples[-1].began < 3 * samples[-1].seconds
        return samples[-1] if lately else None

    def history(self, now: float) -> list[Sample]:
        """The last day, oldest first: long samples, then short ones from where those begin."""
        self._sample(now)
        short, long = (list(period.samples) for period in self._periods)
        first = short[0].began if short else float("inf")
        return [one for one in long if one.began + one.seconds <= first] + short

    def _sample(self, now: float) -> None:
        for period in self._periods:
            period.sample(self._sums, self.waiting, now)
        self.waiting = 0


class _Period:
    """Samples that each stand for the same length of time."""

    def __init__(self, seconds: float, most: int) -> None:
        self.samples: deque[Sample] = deque(maxlen=most)
        self.due = float("-inf")
        """When the sample ends that is being made."""
        self._seconds = seconds
        self._waiting = 0
        self._before = _Sums.none()

    def sample(self, sums: _Sums, waiting: int, now: float) -> None:
        """Close the sample that is over, if one is. What was noted belongs to it: this is called
        before anything is noted that is later."""
        self._waiting = max(self._waiting, waiting)
        if now < self.due:
            return
        before, batches = self._before, _new(sums.sizes, self._before.sizes)
        if any(batches):
            latencies = _new(sums.latencies, before.latencies)
            self.samples.append(
                Sample(
                    self.due - self._seconds,
                    self._seconds,
                    sum(latencies),
                    sum(batches),
                    sums.rows - before.rows,
                    quantile(latencies, _HALF),
                    quantile(latencies, _NEARLY_ALL),
                    (sums.computed - before.computed) / sum(batches),
                    self._waiting,
                )
            )
            self._before = sums.copy()
        self._waiting = 0
        late = self.due + self._seconds <= now
        self.due = now + self._seconds if late else self.due + self._seconds


def quantile(latencies: Sequence[int], share: float) -> float:
    """Seconds below which this share of requests was answered, to within the size of a place."""
    wanted = share * sum(latencies)
    below = 0
    for place, count in enumerate(latencies):
        if count and below + count >= wanted:
            low = (1 << place) >> 1
            return (low + (wanted - below) / count * ((1 << place) - low)) / _MICRO
        below += count
    return 0.0


def _new(now: Sequence[int], before: Sequence[int]) -> list[int]:
    return [one - other for one, other in zip(now, before, strict=True)]


def _trimmed(counts: list[int]) -> list[int]:
    last = max((place for place, count in enumerate(counts) if count), default=-1)
    return counts[: last + 1]
