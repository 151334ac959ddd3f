"""Rows that `status`, `ps` and other views show: one for each device, lease, job or nursery."""

from typing import Literal

from msgspec import Struct, field

from sublet.domain.device import Device
from sublet.domain.job import UncaughtError


class CardRow(Struct, frozen=True):
    """What a job with several GPUs has on one of them."""

    device: str
    ceiling: int = field(name="lease")
    charge: int
    now: int | None
    peak: int | None


class LeaseRow(Struct, frozen=True):
    """A lease and its holder. Of a job with several GPUs: the lease on the first, the most that is
    in use on any, and `cards`."""

    job: int
    attempt: int
    name: str
    state: str
    device: str
    ceiling: int = field(name="lease")
    charge: int
    now: int | None
    peak: int | None
    since: float
    pid: int | None
    how: str
    basis: str
    over: bool
    """More is in use than was charged."""
    in_process: bool = field(default=False, name="lodger")
    """Whether the process holds it itself: nothing of ours ends or pauses it."""
    within: int | None = None
    """The job out of whose lease this one comes; the device counts only that one."""
    floor: int = 0
    """The ceiling that was granted; `ceiling` is what it is now."""
    highest: int = 0
    """The largest ceiling that it has had."""
    most: int = 0
    """What the ceiling may be raised to; the same as `ceiling` if the lease is fixed."""
    cards: tuple[CardRow, ...] = ()
    """All of them, if there are several."""
    unfenced: str = ""
    """Why on a GPU only TensorFlow's pool is held to it; empty if the whole program is, and on the
    CPU."""


class WaitingRow(Struct, frozen=True):
    """A job that waits, and why."""

    job: int
    name: str
    memory: str
    device: str | None
    since: float
    reason: str
    foreground: bool = False
    """Whether a client in a terminal waits with it."""


class NurseryRow(Struct, frozen=True):
    """A warm process that forks workers."""

    python: str
    state: str
    """`warm`, `warming up`, or `off` and why."""
    pid: int | None
    tensorflow: str
    holds: int
    """Bytes it adds to the machine, charged to the CPU device."""


class DeviceRow(Struct, frozen=True):
    """A device and how full it is."""

    device: Device
    leased: int
    strangers: int
    standing: int
    """What the nurseries hold."""
    free: int
    fault: str | None = None
    """Why it cannot be used now."""
    note: str = ""
    """What its driver does not say, in words."""
    used: int = 0
    """What the programs with leases hold of it."""


class EventRow(Struct, frozen=True):
    """A job has come into another state."""

    at: float
    """Wall seconds."""
    job: int
    name: str
    state: str
    """As in `JobRow`."""
    attempt: int


class HoldingRow(Struct, frozen=True, array_like=True):
    """What a job holds of a device at one moment; job 0 stands for many small ones."""

    job: int
    charge: int
    """What the device is charged."""
    used: int
    """With what is used by jobs within its lease."""


class UsageRow(Struct, frozen=True, array_like=True):
    """How full a device is from a moment on."""

    at: float
    """Wall seconds."""
    strangers: int
    standing: int
    """What the nurseries hold."""
    holdings: tuple[HoldingRow, ...]
    """By number."""


LeaseEventKind = Literal[
    "granted", "grown", "shrunk", "out of memory", "preempted", "failed", "cancelled", "ended"
]


class LeaseEventRow(Struct, frozen=True):
    """Something has happened to a job's lease on a device."""

    at: float
    """Wall seconds."""
    device: str
    job: int
    name: str
    attempt: int
    kind: LeaseEventKind
    charge: int
    """What the device was charged from then on, or until then if the lease has ended."""
    text: str = ""
    """How an attempt ended, in a few words."""


class JobRow(Struct, frozen=True):
    """A job, for people and programs that look. Times are wall seconds, spans are seconds."""

    id: int
    name: str
    state: str
    """waiting, starting, running, stopping, paused, or finished."""
    reason: str
    """What it waits for, how it ended, or what is wrong with it while it runs."""
    submitted: float
    attempt: int
    attempt_id: str = field(name="run")
    priority: str
    service: str
    memory: str
    """As it was asked for."""
    starts_in: float | None = None
    """Seconds until it is likely to start."""
    ends_in: float | None = None
    """Seconds until it is likely to end."""
    device: str | None = None
    ceiling: int | None = field(default=None, name="lease")
    charge: int | None = None
    floor: int | None = None
    """The ceiling that was granted; `ceiling` is what it is now, or was at the end."""
    highest: int | None = None
    """The largest ceiling that it has had."""
    basis: str = ""
    now: int | None = None
    peak: int | None = None
    system_peak: int | None = None
    since: float | None = None
    """When this state began."""
    ran: float | None = None
    waited: float | None = None
    time: float | None = None
    """Its time limit."""
    pid: int | None = None
    how: str = ""
    code: int | None = field(default=None, name="exit")
    cause: str | None = None
    by_user: bool = False
    """Whether its user has ended it: that is no failure."""
    error: UncaughtError | None = None
    """The exception that has ended it, if it was seen."""
    script: str = ""
    """The file that it runs; empty for a module, for code of a command line and for other
    programs."""
    array: int | None = None
    index: int | None = None
    after: tuple[int, ...] = ()
    split: bool = False
    foreground: bool = False
    within: int | None = None
    cards: tuple[CardRow, ...] = ()
    """What it has, or had, on each of several GPUs."""
    gang: tuple[int, ...] = ()
    """All jobs of the cluster of which it is a task; the first names the cluster."""
    role: str = ""
    """What it does there: chief, worker, ps or evaluator."""
    role_index: int | None = None
    port: int | None = None
    """The port that is held for it; None for one that nobody connects to."""
