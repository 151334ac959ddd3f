"""From a granted job to what a keeper needs to start its worker."""

import hashlib
import os
import sys
from collections.abc import Sequence

from msgspec.structs import replace

from sublet.backends.local.cluster_environment import cluster_environment
from sublet.domain.device import Device, split_names
from sublet.domain.job import Job, JobSpec, Program
from sublet.formats import fence_file, fence_library
from sublet.formats.lease import Card, LeaseTerms
from sublet.formats.lease_environment import VISIBLE, leased_environment, without_fence
from sublet.formats.worker_spec import WorkerSpec
from sublet.home import Home
from sublet.keeper import output_files

_ENGINE = b"sublet.engine.engine"
_POOLS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def lease_terms(job: Job, devices: Sequence[Device], home: Home, fence: str = "") -> LeaseTerms:
    """The lease as the program's side sees it; `devices` are those of the job's leases."""
    lease = job.lease
    assert lease is not None
    device, *others = devices
    return LeaseTerms(
        job=job.id,
        attempt=job.attempt,
        token=job.lease_token,
        device=device.id,
        kind=device.kind,
        uuid=device.uuid,
        ceiling=lease.ceiling,
        capacity=device.capacity,
        dir=str(home.runs / job.attempt_id),
        roomy=lease.roomy,
        most=lease.most,
        # A server names the devices of its engines; its user has not.
        chosen=_is_chosen(job.spec) and job.spec.program.target != _ENGINE,
        more=tuple(
            Card(one.id, one.uuid, more.ceiling, one.capacity)
            for one, more in zip(others, lease.also, strict=True)
        ),
        fence=fence,
        splits=job.spec.on_oom in ("split", "split-exact"),
        exact=job.spec.on_oom == "split-exact",
        found=str(home.micro_batches / f"{_digest(job.spec.identity)}.json"),
    )


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _is_chosen(spec: JobSpec) -> bool:
    """Whether its user wants the device or none: with CUDA_VISIBLE_DEVICES alone, a program runs on
    the CPU where TensorFlow finds no GPU."""
    return spec.gpus is not None or (spec.device is not None and not spec.wished)


def fence_of(job: Job, devices: Sequence[Device]) -> tuple[str, str]:
    """The directory of the fence that the job's program gets; else why it does not get the one that
    was asked for."""
    asked = job.spec.fence
    if not asked or devices[0].kind != "gpu":
        return "", ""
    if len(devices) > 1:
        return "", fence_library.ONE_GPU
    why = fence_library.why_unusable(asked) if asked.startswith("/") else asked
    return ("", why) if why else (asked, "")


def make_fence_file(job: Job, devices: Sequence[Device], home: Home) -> None:
    """Make the terms for the fence of a job that is to be started, if it gets one."""
    lease = job.lease
    if lease is None or not fence_of(job, devices)[0]:
        return
    directory = home.runs / job.attempt_id
    directory.mkdir(mode=0o700, exist_ok=True)
    told = max(lease.ceiling, lease.most)
    most = lease.charge + told - lease.ceiling
    fence_file.create(str(directory), fence_library.version(), lease.charge, most, told)


def worker_spec(job: Job, devices: Sequence[Device], home: Home) -> WorkerSpec:
    """The contents of an attempt's spec.json: all that a worker takes on."""
    program = job.spec.program
    around = job.spec.surroundings
    client = job.spec.client
    fence, why = fence_of(job, devices)
    lease, terms = job.lease, lease_terms(job, devices, home, fence)
    assert lease is not None
    if job.spec.task is not None:
        program = filled_in(program, job.spec.task.index)
    log_paths = output_files.paths(str(home.logs), job.attempt_id, job.spec.split)
    environ, notes = leased_environment(terms, _granted_wish(job, terms))
    if why:
        notes.append(f"the fence is not used: {why}; the lease holds TensorFlow's pool only")
    if job.spec.service == "opportunistic":
        # TensorFlow sizes its pools once, by the processors of that moment; it may be confined just
        # then, and is to use all of them later.
        for name in _POOLS:
            environ.setdefault(name, str(len(lease.cpus or around.affinity)))
    return {
        "run": job.attempt_id,
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
        "closed": list(around.closed),
        "limits": {str(number): limits for number, limits in around.limits.items()},
        "client": None if client is None else {"pid": client.pid, "start": client.start},
        "time": job.spec.time,
        "grace": job.spec.grace,
        "service": job.spec.service,
        "leave_children": job.spec.leave_children,
        # The next one has the settings of this one: a nursery's environment has none of them.
        "broker": {
            "command": [sys.executable, "-m", "sublet.broker"],
            "environ": dict(os.environ),
        },
        "logs": None if client is not None else {"paths": log_paths},
        "port": lease.ports[job.spec.gang.at] if job.spec.gang is not None else 0,
    }


def filled_in(program: Program, index: int) -> Program:
    """`{index}` in the arguments of an array's job is its index."""
    args = tuple(word.replace(b"{index}", str(index).encode()) for word in program.args)
    return replace(program, args=args)


def _granted_wish(job: Job, terms: LeaseTerms) -> dict[str, str]:
    """The client's environment, in which a CUDA_VISIBLE_DEVICES that was granted in full has the
    names of the lease: that needs no word."""
    environ = text_environment(job)
    wished = split_names(environ.get(VISIBLE, "")) if job.spec.wished else []
    if terms.uuids is not None and len(wished) == len(terms.cards):
        environ[VISIBLE] = terms.uuids
    return environ


def text_environment(job: Job) -> dict[str, str]:
    """The client's environment as Python would show it, and the place in an array or a cluster."""
    pairs = job.spec.surroundings.environ.items()
    environ = without_fence({os.fsdecode(name): os.fsdecode(value) for name, value in pairs})
    if (task := job.spec.task) is not None:
        environ |= {"SUBLET_ARRAY_JOB": str(task.array), "SUBLET_ARRAY_INDEX": str(task.index)}
    return environ | cluster_environment(job, environ)
