"""A tf.distribute cluster on this machine: one job for each task, in the queue as one gang."""

import os
from collections.abc import Mapping, Sequence
from typing import Unpack

from sublet.client import job_request
from sublet.client.connection import ask
from sublet.client.options import QueueOptions
from sublet.client.program import this_process
from sublet.domain.job import Role
from sublet.errors import BadRequest
from sublet.wire import PROTOCOL
from sublet.wire.messages import Queued
from sublet.wire.pack import pack

ROLES: tuple[Role, ...] = ("chief", "worker", "ps", "evaluator")
_TF_CONFIG = "TF_CONFIG"


def launch(
    words: Sequence[str],
    tasks: Mapping[Role, int],
    memory: str = "grow",
    *,
    detach: bool = False,
    stall: float = 60.0,
    **options: Unpack[QueueOptions],
) -> tuple[int, ...]:
    """Put a cluster into the queue: `launch(["train.py"], {"worker": 2})`. Returns the numbers of
    its jobs, in the order of the roles. It ends with this process, unless it is detached. A task
    that is missing or hangs for `stall` seconds is named by `sublet ps`."""
    roles = tuple((role, tasks[role]) for role in ROLES if tasks.get(role))
    _check(roles)
    options.setdefault("on_oom", "fail")
    spec = job_request.job_without_client(words, memory, **options)
    if spec["program"]["kind"] == "command":
        raise BadRequest(
            f"{words[0]} is not a Python program.",
            "Name the script of the tasks, such as `sublet launch --workers 2 train.py`.",
        )
    tree = {
        "type": "submit",
        "spec": spec,
        "token": os.urandom(16).hex(),
        "roles": roles,
        "owner": None if detach else this_process(),
        "stall": stall,
        "protocol": PROTOCOL,
    }
    return ask(pack(tree), Queued).jobs


def _check(roles: Sequence[tuple[Role, int]]) -> None:
    """Refuse what is no cluster; the broker does so, too, in fewer words."""
    counts = dict(roles)
    if not counts.get("chief") and not counts.get("worker"):
        raise BadRequest("A cluster needs a worker or a chief.", "Write `--workers 2`.")
    if counts.get("ps") and not counts.get("worker"):
        raise BadRequest("A parameter server needs workers.", "Add `--workers 1`.")
    if os.environ.get(_TF_CONFIG):
        raise BadRequest(
            "TF_CONFIG is set: this is a task of a cluster already, or a left-over of one.",
            "Unset it: `env -u TF_CONFIG sublet launch …` makes one for each task.",
        )
