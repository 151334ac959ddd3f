"""From a granted job to what a keeper needs to start its worker."""

import os
from typing import Any

from sublet.domain.device import Device
from sublet.domain.job import Job
from sublet.domain.lease import Lease
from sublet.home import Home
from sublet.inside.environment import leased_environment
from sublet.inside.lease import Lease as InsideLease


def mark(job: Job) -> str:
    """What tells this attempt's processes apart from all others."""
    return f"{job.token}-{job.attempt}"


def worker_spec(job: Job, lease: Lease, device: Device, home: Home) -> dict[str, Any]:
    """The contents of an attempt's spec.json: all that a worker takes on."""
    program = job.spec.program
    around = job.spec.surroundings
    inside = InsideLease(
        job=job.id,
        attempt=job.attempt,
        token=mark(job),
        device=device.id,
        kind=device.kind,
        uuid=device.uuid,
        ceiling=lease.ceiling,
        capacity=device.capacity,
        dir=str(home.runs / job.run),
        tight=lease.tight,
    )
    environ, notes = leased_environment(inside, text_environment(job))
    return {
        "run": job.run,
        "kind": program.kind,
        "target": os.fsdecode(program.target),
        "args": [os.fsdecode(word) for word in program.args],
        "flags": [os.fsdecode(word) for word in program.flags],
        "argv": [os.fsdecode(word) for word in program.argv()],
        "cwd": os.fsdecode(around.cwd),
        "environ": environ,
        "notes": notes,
        "umask": around.umask,
        "nice": around.nice,
        "affinity": list(lease.cpus or around.affinity),
        "ignored": list(around.ignored),
        "limits": {str(number): limits for number, limits in around.limits.items()},
        "client": {"pid": job.spec.client.pid, "start": job.spec.client.start},
    }


def text_environment(job: Job) -> dict[str, str]:
    """The client's environment as Python would show it."""
    pairs = job.spec.surroundings.environ.items()
    return {os.fsdecode(name): os.fsdecode(value) for name, value in pairs}
