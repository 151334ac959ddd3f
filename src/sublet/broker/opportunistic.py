"""Opportunistic programs, held so that guaranteed ones do not feel them.

Owns what each of them was last told. Never decides: `policy.service` does.
"""

from collections.abc import Mapping

from sublet.backends.local.launcher import Launcher
from sublet.broker.device_usage import UsageSample
from sublet.devices import processors
from sublet.domain.device import Device
from sublet.domain.job import Job, Paused, Running
from sublet.policy.opportunistic import Occupant, parts, turns


class OpportunisticJobs:
    """The broker's word to their keepers."""

    def __init__(self, launcher: Launcher, devices: Mapping[str, Device]) -> None:
        self._launcher = launcher
        self._gpus = [device.id for device in devices.values() if device.kind == "gpu"]
        self._machine = processors()
        # What an earlier broker has told them is not known: each is told once.
        self._parts: dict[str, tuple[int, ...]] = {}
        self._turns: dict[str, float] = {}

    def hold(self, holding: list[Job], samples: Mapping[str, UsageSample]) -> None:
        """Tell those for whom something has changed."""
        running = [job for job in holding if isinstance(job.holds, Running)]
        if not any(job.spec.service == "opportunistic" for job in running):
            return
        everybody = tuple(_on_processors(job, samples.get(job.attempt_id)) for job in running)
        for attempt_id, part in parts(self._machine, everybody).items():
            if self._parts.get(attempt_id) != part:
                self._parts[attempt_id] = part
                self._launcher.confine(attempt_id, part)
        for gpu in self._gpus:
            here = tuple(_on_gpu(job) for job in running if job.lease and job.lease.device == gpu)
            for attempt_id, share in turns(here).items():
                if self._turns.get(attempt_id) != share:
                    self._turns[attempt_id] = share
                    self._launcher.duty(attempt_id, share)

    def forget(self, attempt_id: str) -> None:
        """This attempt is over."""
        self._parts.pop(attempt_id, None)
        self._turns.pop(attempt_id, None)


def _on_processors(job: Job, sample: UsageSample | None) -> Occupant:
    busy = 0.0 if isinstance(job.state, Paused) else sample.busy if sample else None
    own = (job.lease and job.lease.cpus) or job.spec.surroundings.affinity
    return Occupant(job.attempt_id, job.spec.service, busy, own)


def _on_gpu(job: Job) -> Occupant:
    """How busy a program keeps a GPU is not known."""
    return Occupant(
        job.attempt_id, job.spec.service, 0.0 if isinstance(job.state, Paused) else None
    )
