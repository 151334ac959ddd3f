"""Opportunistic programs, confined so that guaranteed ones do not feel them.

Remembers what each of them was last confined to. Never decides: `policy.opportunistic` does.
"""

from collections.abc import Mapping

from sublet.backends.backend import Backend
from sublet.broker.device_usage import UsageSample
from sublet.devices import processors
from sublet.domain.device import Device
from sublet.domain.job import Job, Paused, Running
from sublet.policy.opportunistic import Occupant, processors_left, shares_of_time


class OpportunisticJobs:
    """Has the backend confine opportunistic programs when something changes for them."""

    def __init__(self, backend: Backend, devices: Mapping[str, Device]) -> None:
        self._backend = backend
        self._gpus = [device.id for device in devices.values() if device.kind == "gpu"]
        self._machine = processors()
        # What an earlier broker has asked for is not known: each is asked once.
        self._processors: dict[str, tuple[int, ...]] = {}
        self._shares: dict[str, float] = {}

    def hold(self, holding: list[Job], samples: Mapping[str, UsageSample]) -> None:
        """Set the processors again of programs for which something has changed."""
        running = [job for job in holding if isinstance(job.holds, Running)]
        if not any(job.spec.service == "opportunistic" for job in running):
            return
        everybody = tuple(_on_processors(job, samples.get(job.attempt_id)) for job in running)
        for attempt_id, part in processors_left(self._machine, everybody).items():
            if self._processors.get(attempt_id) != part:
                self._processors[attempt_id] = part
                self._backend.confine(attempt_id, part)
        shares: dict[str, float] = {}
        for gpu in self._gpus:
            here = tuple(_on_gpu(job) for job in running if job.lease_on(gpu) is not None)
            for attempt_id, share in shares_of_time(here).items():
                shares[attempt_id] = min(share, shares.get(attempt_id, share))
        for attempt_id, share in shares.items():
            if self._shares.get(attempt_id) != share:
                self._shares[attempt_id] = share
                self._backend.set_duty(attempt_id, share)

    def forget(self, attempt_id: str) -> None:
        """Forget an attempt that is over."""
        self._processors.pop(attempt_id, None)
        self._shares.pop(attempt_id, None)


def _on_processors(job: Job, sample: UsageSample | None) -> Occupant:
    busy = 0.0 if isinstance(job.state, Paused) else sample.busy if sample else None
    own = (job.lease and job.lease.cpus) or job.spec.surroundings.affinity
    return Occupant(job.attempt_id, job.spec.service, busy, own)


def _on_gpu(job: Job) -> Occupant:
    """How busy a program keeps a GPU is not known."""
    return Occupant(
        job.attempt_id, job.spec.service, 0.0 if isinstance(job.state, Paused) else None
    )
