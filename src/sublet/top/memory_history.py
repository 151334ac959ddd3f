"""What the memory of each device was for, over the last hour. Bounded: one sample a second."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from sublet.client.snapshot_feed import View
from sublet.wire.rows import DeviceRow, JobRow

LONGEST = 3600
"""Seconds that are kept."""


class Sample(NamedTuple):
    """What the memory of one device was for, in bytes."""

    used: int
    """Of what is leased: what TensorFlow's allocators hold."""
    leased: int
    nursery: int
    others: int

    @property
    def taken(self) -> int:
        """All that is not free."""
        return self.leased + self.nursery + self.others


def used_by_device(jobs: Iterable[JobRow]) -> dict[str, int]:
    """What TensorFlow's allocators hold on each device, all programs together."""
    used: dict[str, int] = {}
    for job in jobs:
        if job.state == "finished":
            continue
        parts = [(card.device, card.now) for card in job.cards]
        for device, now in parts or [(job.device or "", job.now)]:
            used[device] = used.get(device, 0) + (now or 0)
    return used


def sample(row: DeviceRow, used: int) -> Sample:
    """What the memory of this device is for now."""
    return Sample(min(used, row.leased), row.leased, row.standing, row.strangers)


class MemoryHistory:
    """Samples of each device, oldest first. One holds until the next; None: nobody knows."""

    def __init__(self) -> None:
        self._devices: dict[str, deque[tuple[float, Sample | None]]] = {}

    def note(self, at: float, view: View) -> None:
        """This is what the broker says now."""
        used = used_by_device(view.jobs.values())
        for name, row in view.devices.items():
            self._add(name, at, sample(row, used.get(name, 0)))

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
                found[column] = _fuller(found[column] if last < column else found[last], one)
                last = column
            held = one
        for number in range(last + 1, count):
            found[number] = held
        return found

    def _add(self, name: str, at: float, one: Sample | None) -> None:
        samples = self._devices.setdefault(name, deque())
        if samples and int(samples[-1][0]) == int(at):
            before = samples.pop()
            at, one = before[0], _fuller(before[1], one) if one is not None else None
        samples.append((at, one))
        # The first one holds until the second, so that is the one that must be old.
        while len(samples) > 1 and samples[1][0] < at - LONGEST:
            samples.popleft()


def _fuller(one: Sample | None, other: Sample | None) -> Sample | None:
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda sample: (sample.taken, sample.used))
