"""What the memory of each device was for, over the last hour. Bounded: two samples a second, the
fullest and the last, which holds on."""

from collections import deque
from typing import NamedTuple

from sublet.client.snapshot_feed import View
from sublet.wire.messages import UsageHistory
from sublet.wire.rows import DeviceRow

LONGEST = 3600
"""Seconds that are kept."""


class Sample(NamedTuple):
    """What the memory of one device was for, in bytes."""

    used: int
    """Of what is leased: what the programs hold."""
    leased: int
    nursery: int
    others: int

    @property
    def taken(self) -> int:
        """All that is not free."""
        return self.leased + self.nursery + self.others


def sample(row: DeviceRow) -> Sample:
    """What the memory of this device is for now."""
    return Sample(min(row.used, row.leased), row.leased, row.standing, row.strangers)


class MemoryHistory:
    """Samples of each device, oldest first. One holds until the next; None: nobody knows."""

    def __init__(self) -> None:
        self._devices: dict[str, deque[tuple[float, Sample | None]]] = {}

    def note(self, at: float, view: View) -> None:
        """This is what the broker says now."""
        for name, row in view.devices.items():
            self._add(name, at, sample(row))

    def fill(self, history: UsageHistory) -> None:
        """Begin with what the broker has kept of the time before."""
        for name, rows in history.devices.items():
            for row in rows:
                leased = sum(one.charge for one in row.holdings)
                used = min(leased, sum(one.used for one in row.holdings))
                self._add(name, row.at, Sample(used, leased, row.standing, row.strangers))

    def lose(self, at: float) -> None:
        """From now on nobody knows, until the next note."""
        for name in self._devices:
            self._add(name, at, None)

    def moves(self, since: float) -> bool:
        """Whether anything has changed since then: if not, plots of that span stay as they are."""
        return any(samples[-1][0] >= since for samples in self._devices.values() if samples)

    def columns(self, device: str, until: float, step: float, count: int) -> list[Sample | None]:
        """The fullest sample in each of the last `count` spans of `step` seconds."""
        found: list[Sample | None] = [None] * count
        begin, last = until - step * count, -1
        held: Sample | None = None
        for at, one in self._devices.get(device, ()):
            column = int((at - begin) // step)
            if column >= count:
                break
            if column >= 0:
                # What was there before holds up to here, and into this span.
                for number in range(last + 1, column + 1):
                    found[number] = held
                found[column] = _fuller(found[column], one)
                last = column
            held = one
        for number in range(last + 1, count):
            found[number] = held
        return found

    def _add(self, name: str, at: float, one: Sample | None) -> None:
        samples = self._devices.setdefault(name, deque())
        fullest = newest = (at, one)
        while samples and int(samples[-1][0]) == int(at):
            before = samples.pop()
            fullest = before if _fuller(before[1], fullest[1]) is before[1] else fullest
        samples.extend((newest,) if fullest is newest else (fullest, newest))
        # The first one holds until the second, so that is the one that must be old.
        while len(samples) > 1 and samples[1][0] < at - LONGEST:
            samples.popleft()


def _fuller(one: Sample | None, other: Sample | None) -> Sample | None:
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda sample: (sample.taken, sample.used))
