"""The fields of a `domain.job.JobSpec` as plain dicts, for clients that have not loaded msgspec.

A command sends its job with the standard library alone, so it builds these instead of the records;
the broker decodes them as the records. Imported for types only. A test holds the two together.
"""

from typing import NotRequired, TypedDict

MemoryFields = dict[str, str | int | float]
"""As `domain.memory_option.read_memory` makes them."""


class ProcessFields(TypedDict):
    """The fields of `domain.job.Process`."""

    pid: int
    start: int


class ProgramFields(TypedDict):
    """The fields of `domain.job.Program`."""

    kind: str
    target: bytes
    args: NotRequired[tuple[bytes, ...]]
    flags: NotRequired[tuple[bytes, ...]]
    python: NotRequired[bytes]


class SurroundingsFields(TypedDict):
    """The fields of `domain.job.Surroundings`."""

    cwd: bytes
    environ: dict[bytes, bytes]
    umask: int
    nice: int
    affinity: tuple[int, ...]
    ignored: tuple[int, ...]
    limits: dict[int, tuple[int, int]]
    closed: NotRequired[tuple[int, ...]]
    forgotten: NotRequired[tuple[bytes, ...]]


class JobFields(TypedDict):
    """The fields of `domain.job.JobSpec`."""

    name: str
    program: ProgramFields
    surroundings: SurroundingsFields
    memory: MemoryFields
    client: NotRequired[ProcessFields | None]
    device: NotRequired[str | None]
    gpus: NotRequired[int | None]
    cpus: NotRequired[int | None]
    on_oom: NotRequired[str]
    cold: NotRequired[str]
    priority: NotRequired[str]
    service: NotRequired[str]
    time: NotRequired[float | None]
    grace: NotRequired[float]
    after: NotRequired[tuple[int, ...]]
    after_ok: NotRequired[tuple[int, ...]]
    retries: NotRequired[int]
    requeue: NotRequired[bool]
    split: NotRequired[bool]
    leave_children: NotRequired[bool]
    spread: NotRequired[bool]
    fence: NotRequired[str]
    notify: NotRequired[str]
    on: NotRequired[str]
