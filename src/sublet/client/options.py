"""The options of `sublet run` and `sublet submit`, for type checkers and editors."""

from typing import TypedDict

from sublet.domain.job import OnOom, Priority, Service


class RunOptions(TypedDict, total=False):
    """What every job can be started with, beside the memory."""

    device: str | None
    gpus: int | None
    cpus: int | None
    on_oom: OnOom
    name: str | None
    python: str | None
    cold: bool
    leave_children: bool
    fence: bool | None
    notify: str | None
    on: str | None


class QueueOptions(RunOptions, total=False):
    """What a job in the queue can have besides. Times are in seconds, or "2h"."""

    priority: Priority
    service: Service
    time: float | str | None
    grace: float | str | None
    retries: int
    requeue: bool
    split: bool
