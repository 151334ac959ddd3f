"""The memory of devices over time: samples that are thinned as they age, and events.

A sample holds from its moment until the next one. In each period two are kept: the fullest, and the
last, which holds on. So every sample that is shown was true at its moment, no peak is lost, and at
the end of a period all is exact. Periods are short for what is recent and long for what is old:

    the last 5 minutes    1 s        the last day     1 min
    the last hour         10 s       the last week    10 min

What is kept is bounded, whatever is recorded. Times are wall seconds. If the clock is set back,
samples and events of what is now the future are forgotten.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile
from typing import TypeAlias

from sublet.wire.rows import HoldingRow, LeaseEventRow, UsageRow

MOST_HOLDINGS = 32
"""So many jobs of a device are in a sample, the largest; the others are added up."""
OTHERS = 0
"""Stands for the number of a job where smaller ones are added up."""
MOST_EVENTS = 2000
MOST_FAULTS = 1000
LONGEST_NAME = 100
_AGES = ((1, 300), (10, 3600), (60, 86_400), (600, 7 * 86_400))
"""Seconds of a period, and for how many seconds there are such periods."""
_FAULTS = ("out of memory", "preempted", "failed")
_LEAST_NAMES = 256

# A sample is an array of integers, a quarter of what the rows would take: milliseconds, bytes in
# use, strangers, nurseries, then job, charge and use of each holding.
_Sample: TypeAlias = "array[int]"
_AT, _TOTAL, _HEAD = 0, 1, 4


class _Periods:
    """Samples of one age, at most two for each period, oldest first."""

    def __init__(self, period: int, span: int) -> None:
        self.samples: deque[_Sample] = deque()
        self._period = 1000 * period
        self._span = 1000 * span

    def add(self, sample: _Sample) -> None:
        """Add one that is younger than all before it."""
        period = sample[_AT] // self._period
        fullest = sample
        while self.samples and self.samples[-1][_AT] // self._period == period:
            before = self.samples.pop()
            fullest = before if before[_TOTAL] > fullest[_TOTAL] else fullest
        if fullest is not sample:
            self.samples.append(fullest)
        self.samples.append(sample)

    def outgrown(self, now: int) -> Iterator[_Sample]:
        """Take those away that are too old for this age."""
        while self.samples and self.samples[0][_AT] < now - self._span:
            yield self.samples.popleft()

    def forget_after(self, now: int) -> None:
        """Forget those at or after this moment."""
        while self.samples and self.samples[-1][_AT] >= now:
            self.samples.pop()


class _DeviceHistory:
    """The samples of one device: each age hands on to the next."""

    def __init__(self) -> None:
        self._ages = [_Periods(*age) for age in _AGES]
        self._last: _Sample | None = None

    def add(self, sample: _Sample) -> None:
        """Add what is true from now on. The same again is nothing new."""
        now = sample[_AT]
        if self._last is not None and self._last[_AT] < now and self._last[1:] == sample[1:]:
            return
        self._last = sample
        for age in self._ages:
            age.forget_after(now)
        self._ages[0].add(sample)
        for younger, older in zip(self._ages, self._ages[1:], strict=False):
            for outgrown in younger.outgrown(now):
                older.add(outgrown)
        deque(self._ages[-1].outgrown(now), maxlen=0)

    def samples(self) -> Iterator[_Sample]:
        """All samples, oldest first."""
        for age in reversed(self._ages):
            yield from age.samples


class UsageHistory:
    """What was recorded of all devices, since the broker began."""

    def __init__(self) -> None:
        self._devices: dict[str, _DeviceHistory] = {}
        self._names: dict[int, str] = {}
        self._most_names = _LEAST_NAMES
        self._events: deque[LeaseEventRow] = deque(maxlen=MOST_EVENTS)
        self._faults: deque[LeaseEventRow] = deque(maxlen=MOST_FAULTS)
        """Kept apart: a thousand short jobs must not push an out-of-memory out."""

    def record(self, device: str, row: UsageRow, names: dict[int, str]) -> None:
        """How full this device is from now on, and what the jobs there are called."""
        self._devices.setdefault(device, _DeviceHistory()).add(_pack(row))
        self._names |= {number: name[:LONGEST_NAME] for number, name in names.items()}
        if len(self._names) > self._most_names:
            self._forget_names()

    def note(self, event: LeaseEventRow) -> None:
        """Add an event: something has happened to a lease."""
        for events in (self._events, self._faults):
            while events and events[-1].at > event.at:
                events.pop()
        (self._faults if event.kind in _FAULTS else self._events).append(event)

    def devices(self, since: float = 0.0) -> dict[str, tuple[UsageRow, ...]]:
        """The samples of each device after a moment, and the one that held then; oldest first."""
        return {
            name: tuple(_unpack(one) for one in _holding_since(device.samples(), since))
            for name, device in self._devices.items()
        }

    def events(self, since: float = 0.0) -> tuple[LeaseEventRow, ...]:
        """What has happened after a moment, oldest first."""
        events = sorted((*self._events, *self._faults), key=lambda event: event.at)
        return tuple(dropwhile(lambda event: event.at <= since, events))

    def names(self, numbers: Iterable[int]) -> dict[int, str]:
        """The names of these jobs."""
        return {number: self._names[number] for number in numbers if number in self._names}

    def _forget_names(self) -> None:
        """Forget those of jobs that are in no sample any more."""
        shown = {
            number
            for device in self._devices.values()
            for sample in device.samples()
            for number in sample[_HEAD::3]
        }
        self._names = {number: name for number, name in self._names.items() if number in shown}
        self._most_names = max(_LEAST_NAMES, 2 * len(self._names))


def largest(holdings: Sequence[HoldingRow]) -> tuple[HoldingRow, ...]:
    """At most `MOST_HOLDINGS`, by number: of more, the smaller ones are added up."""
    if len(holdings) > MOST_HOLDINGS:
        by_size = sorted(holdings, key=lambda one: (-max(one.charge, one.used), one.job))
        kept, rest = by_size[: MOST_HOLDINGS - 1], by_size[MOST_HOLDINGS - 1 :]
        others = HoldingRow(OTHERS, sum(one.charge for one in rest), sum(one.used for one in rest))
        holdings = [*kept, others]
    return tuple(sorted(holdings, key=lambda one: one.job))


def _holding_since(samples: Iterator[_Sample], since: float) -> Iterator[_Sample]:
    moment, held = int(1000 * since), None
    for sample in samples:
        if sample[_AT] <= moment:
            held = sample
            continue
        if held is not None:
            yield held
            held = None
        yield sample
    if held is not None:
        yield held


def _pack(row: UsageRow) -> _Sample:
    holdings = largest(row.holdings)
    total = row.strangers + row.standing + sum(one.used for one in holdings)
    numbers = [int(1000 * row.at), total, row.strangers, row.standing]
    for one in holdings:
        numbers += (one.job, one.charge, one.used)
    return array("q", numbers)


def _unpack(sample: _Sample) -> UsageRow:
    at, _, strangers, standing, *rest = sample
    each = iter(rest)
    holdings = tuple(HoldingRow(*one) for one in zip(each, each, each, strict=True))
    return UsageRow(at / 1000, strangers, standing, holdings)
