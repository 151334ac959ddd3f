"""What becomes of a gang: a tf.distribute cluster whose tasks start, end and restart together.

A task that has ended may have done its work, have failed, or wait to be started again. From that
alone follows what is to be done with the others, so a broker that takes over decides as the one
before it would have.

1. Where a task has failed for good, the gang has: all others end.
2. The gang is done when its leaders are. What still serves them then ends, and that is no failure.
3. Where a task waits again while others run or are done, all are started again: those that run are
   stopped, and once nobody runs, those that were done wait, too.

Pure: the same tasks give the same answer.
"""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from sublet.domain.job import Role

Progress = Literal["waits", "holds", "done", "failed"]
"""`holds`: it has a lease, and runs or is about to. `failed`: it will not be tried again."""


class TaskProgress(Struct, frozen=True):
    """How far one task of a gang has come."""

    role: Role
    progress: Progress


class Settlement(Struct, frozen=True):
    """What is to be done with the tasks of a gang, by their places in it."""

    why: Literal["", "done", "failed", "again"] = ""
    stop: tuple[int, ...] = ()
    """These hold leases, and are to end."""
    withdraw: tuple[int, ...] = ()
    """These wait, and are not wanted any more."""
    reopen: tuple[int, ...] = ()
    """These were done, and are to run again."""


def leads(role: Role, roles: frozenset[Role]) -> bool:
    """Whether the gang's work is done only when this task's is. Where there are parameter servers
    and a chief, the chief gives the workers their work, and they serve it until they are ended."""
    if role == "worker":
        return not {"chief", "ps"} <= roles
    return role == "chief"


def settle(tasks: Sequence[TaskProgress]) -> Settlement:
    """What follows from how far the tasks have come."""
    found: dict[Progress, tuple[int, ...]] = {
        progress: tuple(at for at, task in enumerate(tasks) if task.progress == progress)
        for progress in ("waits", "holds", "done", "failed")
    }
    waiting, holding = found["waits"], found["holds"]
    if found["failed"]:
        return Settlement("failed", stop=holding, withdraw=waiting)
    roles = frozenset(task.role for task in tasks)
    if all(task.progress == "done" for task in tasks if leads(task.role, roles)):
        return Settlement("done", stop=holding, withdraw=waiting)
    if waiting and holding:
        return Settlement("again", stop=holding)
    if waiting and found["done"]:
        return Settlement("again", reopen=found["done"])
    return Settlement()
