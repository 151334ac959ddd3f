"""Requests and replies: typed records, never pickles.

A connection carries one request and the replies to it. The connection of a job stays open until
the job has ended, and takes `Signal` in between; closing it ends the job.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from sublet.domain.history import Explanation, Forecast
from sublet.domain.job import EventLog, JobSpec, Outcome, Process, Role
from sublet.domain.lease import Lease
from sublet.wire import PROTOCOL
from sublet.wire.decoders import made_once
from sublet.wire.metrics import Metrics
from sublet.wire.rows import (
    DeviceRow,
    EventRow,
    JobRow,
    LeaseEventRow,
    LeaseRow,
    NurseryRow,
    UsageRow,
    WaitingRow,
)

Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Of a job, as the ledger can hold it."""
Numbers = Annotated[tuple[Number, ...], Meta(max_length=100_000)]
Token = Annotated[str, Meta(min_length=1, max_length=200, pattern="^[ -~]*$")]


class _Request(Struct, frozen=True, kw_only=True):
    """What begins a connection says which protocol the client speaks."""

    protocol: int = PROTOCOL


class Under(Struct, frozen=True):
    """The lease that a client runs under itself, and the secret that only its program knows."""

    job: Number
    token: Token


class Run(_Request, frozen=True, tag="run"):
    """Accept this job and report on it; its three streams come along as file descriptors.

    The token is the client's own secret: the same request sent twice makes one job. Where the
    client runs under a lease, the job's lease comes out of that one.
    """

    spec: JobSpec
    token: Token
    under: Under | None = None


class Submit(_Request, frozen=True, tag="submit"):
    """Accept this job, which runs on its own; with `indexes`, one job for each of them.

    The token makes the same request, sent twice, one job.
    """

    spec: JobSpec
    token: Token
    indexes: tuple[Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)], ...] = ()
    at_once: Number = 0
    arguments: tuple[tuple[bytes, ...], ...] = ()
    """The program's arguments for each index; without any, all have those of the spec."""
    roles: tuple[tuple[Role, Number], ...] = ()
    """For a tf.distribute cluster: how many tasks there are of each role, one job for each."""
    owner: Process | None = None
    """The cluster ends when this process does; None if it runs on its own."""
    stall: float = 60.0
    """Seconds that a cluster may stand still before its tasks are looked into."""


class LeaseInProcess(_Request, frozen=True, tag="lodge"):
    """Grant me a lease that I hold myself: the spec's client is this process, and nothing is run.

    Hanging up withdraws it, unless I have taken what was `Offered`; then it is mine until I end.
    The token makes the same request, sent twice, one job.
    """

    spec: JobSpec
    token: Token


class GiveBack(_Request, frozen=True, tag="give back"):
    """I have written down that I do not want the lease I hold myself any more: look."""

    job: Number
    token: Token


class AskJobs(_Request, frozen=True, tag="jobs"):
    """These jobs; without numbers, the live ones and those that ended last."""

    jobs: Numbers = ()
    live: Number = 40
    """At most so many live ones."""
    finished: Number = 5


class Watch(_Request, frozen=True, tag="watch"):
    """Tell me of these jobs, now and whenever one changes."""

    jobs: Numbers


class Subscribe(_Request, frozen=True, tag="subscribe"):
    """Send me devices and jobs now, and from then on what changes; answered with `Update`s."""


Verb = Literal["cancel", "pause", "resume", "retry"]


class JobAction(_Request, frozen=True, tag="act"):
    """Do this to these jobs: to all of them or, if it cannot be done to one, to none."""

    verb: Verb
    jobs: Numbers
    environ: dict[bytes, bytes] = {}
    """With `retry`: the environment for the jobs, whose own was forgotten when they had ended."""


class Attach(_Request, frozen=True, tag="attach"):
    """I am the client of this job, and speak to a broker that came after its first.

    My three streams come along again.
    """

    job: Number
    token: Token


class Signal(Struct, frozen=True, tag="signal"):
    """Send this signal to the program of the job I am attached to."""

    number: Annotated[int, Meta(ge=1, le=64)]
    early: bool = False
    """The program has not begun, as far as I know: if so, give its start up, else do nothing."""


class AskStatus(_Request, frozen=True, tag="status"):
    """What is there, who holds it, who waits."""


class AskMetrics(_Request, frozen=True, tag="metrics"):
    """How full is everything, and what was counted; answered with `Metrics`."""


class AskUsageHistory(_Request, frozen=True, tag="usage history"):
    """How full were the devices, and what has happened to leases, after a moment?"""

    since: float = 0.0
    """Wall seconds; 0 for all that is kept."""


class Down(_Request, frozen=True, tag="down"):
    """End the broker; running programs go on unless they are to be stopped."""

    stop: bool = False


class AskExplain(_Request, frozen=True, tag="explain"):
    """What does the size of this job's lease rest on?"""

    job: Number


class AskStart(_Request, frozen=True, tag="start"):
    """Where and when would this job start? Answered with `WouldStart`."""

    spec: JobSpec


class KeepForecast(_Request, frozen=True, tag="forecast"):
    """Keep what a probe of this program has found; answered with `Explained`."""

    spec: JobSpec
    forecast: Forecast


Request = (
    Run
    | Submit
    | LeaseInProcess
    | GiveBack
    | Attach
    | Signal
    | AskStatus
    | AskJobs
    | AskExplain
    | AskStart
    | AskMetrics
    | AskUsageHistory
    | KeepForecast
    | Watch
    | Subscribe
    | JobAction
    | Down
)


class Accepted(Struct, frozen=True, tag="accepted"):
    """The job is in the ledger, on disk."""

    job: int


class Waits(Struct, frozen=True, tag="waits"):
    """The job waits, and this is what for."""

    reason: str


class Granted(Struct, frozen=True, tag="granted"):
    """The job has a lease and is being started."""

    lease: Lease
    attempt: int


class Offered(Struct, frozen=True, tag="offered"):
    """The lease is there for whoever makes the `claim` in its directory first: take it so."""

    lease: str
    """The terms as JSON, see `formats.lease`."""


class Started(Struct, frozen=True, tag="started"):
    """The program runs in this process."""

    pid: int
    how: str


class LacksMemory(Struct, frozen=True, tag="lacks memory"):
    """An allocation of the program waits for memory, and there is none: who has it."""

    reason: str


class Ended(Struct, frozen=True, tag="ended"):
    """The job has finished; the lease has ended."""

    job: int
    outcome: Outcome
    lease: Lease | None
    how: str
    attempt: int
    suggest: int | None = None
    """After an out-of-memory: a ceiling worth trying that the device can give."""


class Retried(Struct, frozen=True, tag="retried"):
    """The attempt failed and the job is queued again with a larger lease."""

    outcome: Outcome
    lease: Lease | None
    least: int
    """The smallest ceiling it will be given now."""


class Leaving(Struct, frozen=True, tag="leaving"):
    """The broker was asked to end; the program goes on, and the next broker will know it."""


class Refused(Struct, frozen=True, tag="refused"):
    """The request was refused; nothing was changed."""

    kind: str
    message: str
    hint: str = ""


class Snapshot(Struct, frozen=True, tag="snapshot"):
    """All that the broker knows, at one moment."""

    version: str
    pid: int
    home: str
    up: float
    driver: str
    devices: tuple[DeviceRow, ...]
    leases: tuple[LeaseRow, ...]
    waiting: tuple[WaitingRow, ...]
    """The first of those who wait."""
    nurseries: tuple[NurseryRow, ...]
    waits: int = 0
    """How many wait."""


class UsageHistory(Struct, frozen=True, tag="used"):
    """The memory of the devices over time, thinned with age."""

    began: float
    """Since when it is kept, in wall seconds: it ends with its broker."""
    at: float
    """When this was asked."""
    devices: dict[str, tuple[UsageRow, ...]]
    """By device, oldest first. Each row holds until the next; the first may be from before the
    moment that was asked for."""
    events: tuple[LeaseEventRow, ...]
    """Oldest first."""
    names: dict[int, str]
    """What the jobs in these rows are called."""


class Jobs(Struct, frozen=True, tag="rows"):
    """Rows of jobs, and how many live ones were left out."""

    rows: tuple[JobRow, ...]
    running: int = 0
    waiting: int = 0
    left_out: int = 0


class Update(Struct, frozen=True, tag="update"):
    """What has changed since the update before, or the whole.

    The whole comes first, and again whenever a subscriber has missed something because it did not
    read. In between, sequence numbers have no gaps.
    """

    sequence: int
    whole: bool
    """Whether this replaces all that was sent before."""
    devices: tuple[DeviceRow, ...]
    jobs: tuple[JobRow, ...]
    gone: tuple[int, ...] = ()
    """Jobs that are not shown any more."""
    events: tuple[EventRow, ...] = ()
    """What has happened since the update before; of very much, the latest."""
    left_out: int = 0
    """How many live jobs are not shown."""


class Queued(Struct, frozen=True, tag="queued"):
    """The jobs are in the ledger, on disk."""

    jobs: tuple[int, ...]


class Done(Struct, frozen=True, tag="done"):
    """It was done, and this is what was done to each."""

    said: tuple[str, ...]


class Downed(Struct, frozen=True, tag="downed"):
    """The broker ends now; these programs run on or are stopped, these jobs wait."""

    running: tuple[LeaseRow, ...]
    waiting: tuple[WaitingRow, ...]
    waits: int = 0
    """As in a snapshot."""


class WouldStart(Struct, frozen=True, tag="would start"):
    """What would become of a job that is sent now."""

    leases: tuple[Lease, ...]
    """Those that it would get at once; none if it would wait."""
    reason: str
    """What it would wait for."""
    start: float | None
    """Seconds until it starts; None where nobody can tell."""
    stops: tuple[int, ...]
    """Opportunistic jobs that would be stopped to make room."""
    explanation: Explanation
    """What the size of its lease rests on."""


class Explained(Struct, frozen=True, tag="explained"):
    """What the size of a job's lease rests on; of a program that was probed, what it would be."""

    explanation: Explanation
    event_logs: tuple[EventLog, ...] = ()
    """Where its latest attempt has written TensorBoard's event files."""


Reply = (
    Accepted
    | Waits
    | Granted
    | Offered
    | Started
    | LacksMemory
    | Ended
    | Retried
    | Leaving
    | Refused
    | Snapshot
    | Jobs
    | Update
    | Queued
    | Done
    | Downed
    | Explained
    | WouldStart
    | Metrics
    | UsageHistory
)


_ENCODER = msgspec.msgpack.Encoder()


def encode(message: Request | Reply) -> bytes:
    """Encode a message as msgpack."""
    return _ENCODER.encode(message)


def decode_request(data: bytes) -> Request:
    """Decode a request; raises msgspec.MsgspecError for what is none."""
    try:
        return _requests().decode(data)
    except (ValueError, RecursionError) as error:  # Text that is no UTF-8, lists a mile deep.
        raise msgspec.DecodeError(str(error)) from error


def decode_reply(data: bytes) -> Reply:
    """Decode a reply of the broker."""
    return _replies().decode(data)


@made_once
def _requests() -> msgspec.msgpack.Decoder[Request]:
    return msgspec.msgpack.Decoder(Request)


@made_once
def _replies() -> msgspec.msgpack.Decoder[Reply]:
    """Made when the first is there: it takes a while, and the broker needs none."""
    return msgspec.msgpack.Decoder(Reply)
