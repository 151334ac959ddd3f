"""What the processes of programs that are recorded have left so far (`formats.profile_order`)."""

import re
from pathlib import Path

from sublet.formats.profile_order import ProfileOrder
from sublet.formats.shares import start_time

_HEAD = re.compile(rb'^\["(\w+)"', re.MULTILINE)


class ProfileParts:
    """What the processes of all programs have left so far."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._read: dict[str, int] = {}
        self._heads: dict[str, set[bytes]] = {}

    def by_job(self) -> dict[int, list[tuple[int, str]]]:
        """Process and file of each part."""
        found: dict[int, list[tuple[int, str]]] = {}
        for path in sorted(self.directory.iterdir()):
            job, _, pid = path.name.partition("-")
            if job.isdecimal() and pid.isdecimal():
                found.setdefault(int(job), []).append((int(pid), str(path)))
        return found

    def of(self, job: int) -> list[tuple[int, str]]:
        return self.by_job().get(job, [])

    def silent(self, orders: dict[str, ProfileOrder]) -> bool:
        """Whether a program that has an order has not answered."""
        answered = self.by_job()
        return any(order.job not in answered for order in orders.values())

    def done(self, job: int) -> bool:
        """Whether all processes of the job that have begun to record have made their profiles."""
        files = self.of(job)
        return bool(files) and all(self._has(path, pid, b"done") for pid, path in files)

    def ended(self, job: int) -> bool:
        """Whether none of its processes records any more."""
        return all(self._has(path, pid, b"end") for pid, path in self.of(job))

    def unfinished(self) -> bool:
        """Whether a process is still writing."""
        return not all(map(self.ended, self.by_job()))

    def _has(self, path: str, pid: int, head: bytes) -> bool:
        """Whether there is such an event, or nothing more to come."""
        heads = self._heads.setdefault(path, set())
        with open(path, "rb") as file:
            file.seek(self._read.get(path, 0))
            complete, newline, _ = file.read().rpartition(b"\n")
        self._read[path] = self._read.get(path, 0) + len(complete) + len(newline)
        heads.update(_HEAD.findall(complete))
        return bool(heads & {head, b"end"}) or start_time(pid) is None
