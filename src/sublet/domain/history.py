"""What is known of a program's memory: its runs, and what a probe of it has forecast."""

from typing import Literal

from msgspec import Struct

from sublet.domain.job import Past
from sublet.domain.lease import Lease

Likeness = Literal["same", "batch", "other"]


class Point(Struct, frozen=True):
    """A batch size, or a share of one, and the peak it was seen to have."""

    batch: float
    peak: int


class Run(Struct, frozen=True):
    """One measured run. `likeness` says how its arguments compare with those of the job that is to
    be sized: the same, different in the batch size only, or different otherwise."""

    job: int
    at: float
    ceiling: int
    peak: int | None
    outside: int | None = None
    exceeded: bool = False
    good: bool = True
    batch: int | None = None
    likeness: Likeness = "same"
    edited: bool = False
    """The script's text was another one."""
    start: str = "warm"
    """How it was started, which decides what its process costs: `warm`, `cold`, `fresh` if it
    could have been warm and was not, `lodger` if it holds the lease in its own process."""
    model: str = ""
    """The name of the GPU that it ran on; empty for the CPU."""


class Forecast(Struct, frozen=True):
    """What a probe expects of a full run."""

    expected: int
    low: int
    high: int
    points: tuple[Point, ...]
    """Shares of the full batch, and the peaks measured with them."""
    rests_on: str
    """In words: how far the probe got."""
    at: float = 0.0
    edited: bool = False
    complete: bool = True
    """Whether each of its runs came to its end."""


class History(Struct, frozen=True):
    """All that is known about a program when its next job is sized."""

    runs: tuple[Run, ...] = ()
    """Newest first."""
    batch: int | None = None
    """The batch size that the job's own arguments name."""
    forecast: Forecast | None = None
    start: str = "warm"
    """How the job is going to be started."""
    model: str = ""
    """The name of the GPU that it is to run on; empty for the CPU."""


class Explanation(Struct, frozen=True):
    """What the size of a job's lease rests on: facts that `policy.explanation` words."""

    job: int
    name: str
    attempt: int
    state: str
    ask: str
    device: str
    capacity: int
    ever: int
    """The largest ceiling that the device could give this program with no other on it."""
    history: History
    lease: Lease | None = None
    waits: str = ""
    """What a job that waits is waiting for."""
    least: int = 0
    """The smallest ceiling worth trying after an attempt that ran out of memory."""
    peak: int | None = None
    """What the job itself has held at most; None where it has not run."""
    past: tuple[Past, ...] = ()
    """Its attempts before this one, the earliest first."""
