"""What an attempt's relay is to have done on a node, and how that ended: files in its directory."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sublet.domain.device import Device
from sublet.domain.job import Job, Outcome, Program
from sublet.home import Home

GRACE = 30.0
"""Seconds more than its program that a relay has to end."""
_ORDER, _END, _STOP = "relay.order", "relay.end", "relay.stop"


class Order(Struct, frozen=True):
    """One attempt, as a node is to run it."""

    cluster: str
    node: str
    mark: str
    """The attempt's secret: who asks twice with it starts one program."""
    job: str
    """The job's: of a job, one attempt runs at a time."""
    spec: dict[str, Any]
    """The fields of a `domain.job.JobSpec`, but for what the node fills in."""
    charge: int
    """What Ray is to give to nobody else, in bytes."""
    gpus: float
    """The same of GPUs, as Ray counts them."""
    port: int
    """For a task of a gang: the port that has to be free there; 0 for none."""
    foreground: bool
    """Whether a client waits for it."""


class End(Struct, frozen=True):
    """How it ended there. Without an outcome, no line of the program has run."""

    outcome: Outcome | None
    how: str = ""
    why: str = ""


def make(job: Job, devices: Sequence[Device], home: Home) -> None:
    """Write the order of an attempt that is granted."""
    directory = home.runs / job.attempt_id
    directory.mkdir(mode=0o700, exist_ok=True)
    (directory / _ORDER).write_bytes(msgspec.msgpack.encode(_order(job, devices)))


def _order(job: Job, devices: Sequence[Device]) -> Order:
    # A relay only reads orders, and many run at a time.
    from sublet.backends.local.worker_specs import filled_in, text_environment

    spec, lease, first = job.spec, job.lease, devices[0]
    assert lease is not None
    around = spec.surroundings
    program = spec.program
    if spec.task is not None:
        program = filled_in(program, spec.task.index)
    environ = {os.fsencode(k): os.fsencode(v) for k, v in text_environment(job).items()}
    memory: dict[str, Any] = {"type": "exactly", "bytes": lease.ceiling}
    if lease.most > lease.ceiling:
        memory = {"type": "between", "floor": lease.ceiling, "most": lease.most}
    gpu = first.kind == "gpu"
    names = [one.id.removeprefix(f"{one.node}/") for one in devices]
    fields = {
        "name": spec.name,
        "program": msgspec.structs.asdict(program),
        "surroundings": msgspec.structs.asdict(replace(around, environ=environ)),
        "memory": memory,
        "device": ",".join(names),
        "gpus": len(names) if gpu else None,
        "cpus": spec.cpus,
        # Whether a job is tried again, and with how much, is decided here.
        "on_oom": spec.on_oom if spec.on_oom.startswith("split") else "fail",
        "cold": spec.cold,
        "service": "guaranteed",
        "time": spec.time,
        "grace": spec.grace,
        "leave_children": spec.leave_children,
    }
    gang = spec.gang
    return Order(
        cluster=first.on,
        node=first.node,
        # The jobs of an array have one token.
        job=f"{job.token}-{job.id}",
        mark=f"{job.token}-{job.id}-{job.attempt}",
        spec=fields,
        charge=0 if gpu else lease.charge,
        gpus=min(1.0, lease.charge / first.capacity) * len(names) if gpu else 0.0,
        port=lease.ports[gang.at] if gang is not None else 0,
        foreground=spec.client is not None,
    )


def read_order(directory: Path) -> Order:
    """The order that `make` has written."""
    return msgspec.msgpack.decode((directory / _ORDER).read_bytes(), type=Order)


def note_end(directory: Path, end: End) -> None:
    """Write down how it ended, for the broker."""
    new = directory / f"{_END}.new"
    new.write_bytes(msgspec.json.encode(end))
    new.replace(directory / _END)


def read_end(directory: Path) -> End | None:
    """How it ended; None if its relay did not live to say so."""
    try:
        return msgspec.json.decode((directory / _END).read_bytes(), type=End)
    except (OSError, msgspec.MsgspecError):
        return None


def note_stop(directory: Path) -> None:
    """Have the relay's next SIGTERM mean that the program is to end, and not be a signal for it."""
    if directory.is_dir():
        (directory / _STOP).touch()


def is_stopped(directory: Path) -> bool:
    """Whether the program is to end."""
    return (directory / _STOP).exists()


def relay_of(job: Job, home: Home) -> Job:
    """The job whose program is the relay: what its keeper here sees to."""
    spec, around = job.spec, job.spec.surroundings
    assert job.lease is not None
    environ = {**os.environ, "SUBLET_HOME": str(home.path)}
    words = ("-m", "sublet.nodes.relay", str(home.runs / job.attempt_id))
    return replace(
        job,
        spec=replace(
            spec,
            program=Program("command", os.fsencode(sys.executable), tuple(map(os.fsencode, words))),
            surroundings=replace(
                around,
                environ={os.fsencode(k): os.fsencode(v) for k, v in environ.items()},
                limits={},
                ignored=(),
            ),
            task=None,
            gang=None,
            time=None,
            grace=spec.grace + GRACE,
            fence="",
            gpus=None,
            cold=f"on {job.lease.where}",
            leave_children=False,
        ),
    )
