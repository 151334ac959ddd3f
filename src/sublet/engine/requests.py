"""The requests of a model and the batches that are made of them, as records."""

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from sublet.errors import ServingError

from .memory import Need

if TYPE_CHECKING:
    from .model_queue import ModelQueue

_BRIEF = 0.0003
"""Seconds that an engine may be deaf while a batch runs: about what a thread needs to wake up if
another one has the interpreter."""


@dataclasses.dataclass(slots=True, eq=False)
class BatchKind:
    """Requests that may share a batch: same signature, types and shapes but for the rows."""

    signature: str
    inputs: tuple[str, ...] = ()
    tails: Any = ()
    """Of each input: dtype, shape behind the rows (None: any), rank."""
    lone: bool = False  # Whether its inputs have no rows in common.
    alone: bool = False  # Whether each of its requests is a batch of its own.
    even: bool = False
    """Whether it was seen to give a row for each row; until then none is split."""
    error: ServingError | None = None  # Why none of its requests can be run.
    bound: Any = None  # What it was last checked against.
    need: Need = dataclasses.field(default_factory=Need)  # Shared by all kinds of a signature.

    def __post_init__(self) -> None:
        self.alone = self.alone or self.lone


@dataclasses.dataclass(slots=True, eq=False)
class Request:
    """One call of one client, from its arrival to its answer."""

    kind: BatchKind
    rows: int
    arrived: float
    deadline: float = float("inf")
    priority: int = 0
    nbytes: int = 0
    arrays: Any = None
    client: Any = None
    call: int = 0
    route: Any = None
    taken: int = 0  # Rows that are in batches already.
    waits: int = 0  # What it counts for in its queue.
    done: bool = False
    """Whether it was answered, refused or given up: whoever meets it in the queue drops it."""
    abandoned: bool = False  # Whether its caller has given it up while it runs.
    started: float = 0.0
    answered: int = 0  # Of a split request: rows that batches have brought back.
    results: Any = None

    def is_wanted(self, now: float) -> bool:
        """Whether somebody still waits for its answer."""
        return not (self.abandoned or self.done or self.client.dead) and now < self.deadline


class Part(NamedTuple):
    """Rows of a request that are in a batch."""

    request: Request
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        request = self.request
        return request.nbytes * (self.stop - self.start) // (request.rows or 1)


class Batch(NamedTuple):
    """Requests, or parts of one, that run at once."""

    queue: "ModelQueue"
    kind: BatchKind
    parts: list[Part]
    rows: int
    nbytes: int  # Of its inputs, without what fills it up.

    @property
    def brief(self) -> bool:
        """Whether it is sure to be done in a moment: the model is quick, and was so of late."""
        bound, queue = self.kind.bound, self.queue
        return (
            bound is not None
            and bound.quick
            and bool(queue.seconds)
            and max(queue.seconds, queue.per_row * self.rows) < _BRIEF
        )
