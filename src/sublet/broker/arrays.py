"""Arrays of which only so many jobs run at a time.

Those that hold a lease come first, then those that wait, in the order they were submitted. Who is
paused and holds nothing takes no place.
"""

from bisect import bisect_left, insort

from sublet.domain.job import Job, Waiting


class _Array:
    """The live jobs of one array."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.live: set[int] = set()
        self.holding: set[int] = set()
        self.waiting: list[int] = []
        self.front: set[int] = set()
        """Those who wait and may start."""

    def move(self, number: int, holds: bool, waits: bool) -> set[int]:
        """Note a job's new state; returns the jobs that are held or freed by it."""
        (self.holding.add if holds else self.holding.discard)(number)
        at = bisect_left(self.waiting, number)
        there = at < len(self.waiting) and self.waiting[at] == number
        if waits and not there:
            insort(self.waiting, number)
        elif there and not waits:
            del self.waiting[at]
        before, places = self.front, max(0, self.at_once - len(self.holding))
        if at >= places and len(before) == min(places, len(self.waiting)):
            return set()  # Behind those who may start: they stay who they are.
        self.front = set(self.waiting[:places])
        return before ^ self.front


class Arrays:
    """All arrays that limit how many of their jobs run at a time."""

    def __init__(self) -> None:
        self._arrays: dict[int, _Array] = {}
        self._of: dict[int, int] = {}

    def note(self, job: Job) -> set[int]:
        """Take in how a job stands now; the jobs that may start since then, or may not."""
        task = job.spec.task
        if task is None or not task.at_once:
            return set()
        array = self._arrays.setdefault(task.array, _Array(task.at_once))
        self._of[job.id] = task.array
        array.live.add(job.id)
        return array.move(job.id, job.holds is not None, isinstance(job.state, Waiting))

    def drop(self, number: int) -> set[int]:
        """This job is not live any more; the jobs that may start since then."""
        name = self._of.pop(number, None)
        if name is None:
            return set()
        array = self._arrays[name]
        changed = array.move(number, False, False)
        array.live.discard(number)
        if not array.live:
            del self._arrays[name]
        return changed

    def lets(self, job: Job) -> bool:
        """Whether the bound of its array lets this job start."""
        task = job.spec.task
        return task is None or not task.at_once or job.id in self._arrays[task.array].front
