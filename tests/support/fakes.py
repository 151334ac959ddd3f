"""A broker's surroundings without processes: a backend, a probe and a clock moved by the test."""

from collections.abc import Callable, Sequence, Set

from sublet.backends.backend import Ending, LaunchFailed, Reports
from sublet.devices import Probe
from sublet.domain.device import Device, DeviceFacts
from sublet.domain.job import Job, Process
from sublet.domain.nursery import Nursery
from sublet.wire.rows import NurseryRow
from support.jobs import facts


class FakeClock:
    """A clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.tick = 1000.0
        self.at = 2e9

    def now(self) -> float:
        return self.tick

    def wall(self) -> float:
        return self.at


class FakeProbe(Probe):
    """Devices that nobody but the broker's own attempts uses."""

    def __init__(self, *devices: Device) -> None:
        self._devices = devices
        self.left_out = {}

    @property
    def driver(self) -> str:
        return "no driver: a test"

    def devices(self) -> list[Device]:
        return list(self._devices)

    def facts(self) -> dict[str, DeviceFacts]:
        return {device.id: facts(device) for device in self._devices}

    def close(self) -> None:
        """There is nothing to close."""


class PuppetBackend:
    """A `Backend` in memory. Attempts do nothing until the test says what becomes of them."""

    def __init__(self, check_launch: Callable[[Job], None] = lambda job: None) -> None:
        """`check_launch` is called with each job just before its attempt counts as launched."""
        self.live: dict[str, Job] = {}
        """The attempts that were launched or offered and are not over, by id."""
        self.begun: set[str] = set()
        self.stopping: dict[str, str] = {}
        self.paused: set[str] = set()
        self.signals: list[tuple[str, int]] = []
        self.forgotten: list[str] = []
        self.failure: LaunchFailed | None = None
        """What every launch fails with, while it is set."""
        self._check_launch = check_launch
        self._reports: Reports | None = None

    @property
    def reports(self) -> Reports:
        assert self._reports is not None
        return self._reports

    # What the test does.

    def begin(self, attempt_id: str) -> None:
        """The program of this attempt runs from here on."""
        self.begun.add(attempt_id)
        self.reports.started(attempt_id, Process(101, 1), Process(102, 1), "cold: a test")

    def end(self, attempt_id: str, ending: Ending | None = None) -> None:
        """The last process of this attempt has ended."""
        self._drop(attempt_id)
        stopped = self.stopping.pop(attempt_id, "")
        self.reports.ended(attempt_id, ending or Ending(15 if stopped else 0, stopped))

    def fail_to_begin(self, attempt_id: str) -> None:
        """This attempt is over, and no line of its program has run."""
        self._drop(attempt_id)
        self.stopping.pop(attempt_id, None)
        self.reports.never_ran(attempt_id, "a test")

    def _drop(self, attempt_id: str) -> None:
        del self.live[attempt_id]
        self.begun.discard(attempt_id)
        self.paused.discard(attempt_id)

    # What the broker asks.

    def report_to(self, reports: Reports) -> None:
        self._reports = reports

    def unready(self, job: Job, room: Callable[[], int]) -> str:
        return ""

    def launch(self, job: Job, devices: Sequence[Device], streams: Sequence[int] | None) -> None:
        if self.failure is not None:
            raise self.failure
        self._check_launch(job)
        assert job.attempt_id not in self.live
        self.live[job.attempt_id] = job

    def offer(self, job: Job, devices: Sequence[Device]) -> str:
        self.launch(job, devices, None)
        return "{}"

    def check_offer(self, attempt_id: str) -> None:
        if attempt_id in self.live and attempt_id not in self.begun:
            self.fail_to_begin(attempt_id)

    def adopt(self, job: Job, rebooted: bool) -> None:
        if job.attempt_id not in self.live:
            self.reports.never_ran(job.attempt_id, "it was never launched")

    def stop(self, attempt_id: str, why: str, grace: float) -> None:
        if attempt_id in self.live:
            self.stopping.setdefault(attempt_id, why)

    def abandon(self, attempt_id: str, why: str) -> None:
        if attempt_id in self.live and attempt_id not in self.begun:
            self.stopping.setdefault(attempt_id, why)

    def signal(self, attempt_id: str, number: int) -> None:
        self.signals.append((attempt_id, number))

    def pause(self, attempt_id: str) -> None:
        if attempt_id in self.live:
            self.paused.add(attempt_id)

    def resume(self, attempt_id: str) -> None:
        self.paused.discard(attempt_id)

    def set_duty(self, attempt_id: str, share: float) -> None:
        """Nothing depends on it."""

    def confine(self, attempt_id: str, processors: tuple[int, ...]) -> None:
        """Nothing depends on it."""

    def forget(self, attempt_id: str) -> None:
        self.forgotten.append(attempt_id)

    def sweep(self, live: Set[str]) -> None:
        assert set(self.live) <= live

    def nurseries(self) -> tuple[NurseryRow, ...]:
        return ()

    def standing_nurseries(self) -> tuple[Nursery, ...]:
        return ()

    def nursery_of(self, job: Job) -> int | None:
        return 0

    def reconsider_nurseries(self, room: int) -> bool:
        return False

    def end_nursery(self, pid: int) -> None:
        raise AssertionError("there is none")

    def close(self) -> None:
        """Attempts go on."""
