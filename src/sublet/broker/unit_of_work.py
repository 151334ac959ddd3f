"""State and ledger, kept in step.

What has happened stays true even if it cannot be written yet. What was decided is undone if it
cannot be written: nothing has been done about it, because effects wait for the commit.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from sublet.broker.counters import Counters
from sublet.broker.effects import Confirmation, Effect
from sublet.broker.events import Change, Event, Undone
from sublet.broker.ledger import Ledger
from sublet.broker.state import State
from sublet.domain.device import Device
from sublet.domain.job import Job, JobSpec, Outcome, Waiting
from sublet.errors import BadRequest
from sublet.text import plain

_COUNTS = "counts"
"""The fact under which the ledger has what was counted."""


class Undo(NamedTuple):
    """A decision that could not be written: how the job was, and what it would have become."""

    before: Job | None
    after: Job


class Committed(NamedTuple):
    """All is on disk; these effects are to be performed, then the confirmations sent."""

    effects: list[Effect]
    confirmations: list[Confirmation]
    changes: list[Change]
    """What has become true since the commit before; it is counted already."""


class CommitFailed(NamedTuple):
    """The disk does not take it for now: the decisions that were undone, and who waits to hear."""

    error: sqlite3.Error
    undone: list[Undo]
    confirmations: list[Confirmation]


class UnitOfWork:
    """The broker's state in memory, and the changes that are not committed yet."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        # Before it is read: what an earlier broker commits is seen here, or refused there.
        ledger.claim()
        self.state = State(ledger.live())
        self.changed = True
        """Whether there is a reason to plan again."""
        self.counters = Counters(ledger.fact(_COUNTS))
        self._next_id = ledger.last_id() + 1
        self._uncommitted: dict[int, Job] = {}
        self._touched: dict[int, None] = {}
        self._measured: list[tuple[Job, str, int, Outcome, str, float, str]] = []
        self._applied: list[Undo] = []
        """All that was applied since the last commit."""
        self._decisions: list[Undo] = []
        self._happened: list[Change] = []
        self._decided: list[Change] = []
        self._effects: list[Effect] = []
        self._after_commit: list[Effect] = []
        self._confirmations: list[Confirmation] = []

    @property
    def pending(self) -> bool:
        """Whether there is something to plan for or to commit."""
        return self.changed or bool(self._uncommitted or self._confirmations)

    @property
    def next_id(self) -> int:
        """The number of the next job."""
        return self._next_id

    def new_job(self, spec: JobSpec, token: str, at: float, tick: float) -> Job:
        """A job that waits, with the next number; it is nowhere yet."""
        # Its name gets into many lines of text: it must not make up lines of its own.
        spec = replace(spec, name=plain(spec.name))
        job = Job(self._next_id, token, spec, at, Waiting(at, tick))
        self._next_id += 1
        return self.ledger.common.share(job)

    def happened(self, event: Event, *effects: Effect) -> Job:
        """Apply an event of the world, to be followed by these effects once it is on disk; returns
        the job as it is now."""
        self.changed = True
        self._after_commit += effects
        applied = self._apply(event)
        self._happened.append(Change(event, *applied))
        return applied.after

    def decided(self, before: Job | None, event: Event, *effects: Effect) -> None:
        """Apply a decision of the broker's; its effects follow once it is on disk."""
        applied = self._apply(event)
        self._decided.append(Change(event, *applied))
        self._decisions.append(Undo(before, applied.after))
        self._effects += effects
        self.changed = self.changed or before is None

    def _apply(self, event: Event) -> Undo:
        number = event.job.id if isinstance(event.job, Job) else event.job
        before = self.state.get(number)
        after = self.state.apply(event)
        assert after is not None
        applied = Undo(before, after)
        self._applied.append(applied)
        self._uncommitted[number] = after
        self._touched[number] = None
        return applied

    @contextlib.contextmanager
    def atomic(self) -> Iterator[None]:
        """What is applied in this block is applied as a whole, or not at all if an exception leaves
        the block."""
        uncommitted = dict(self._uncommitted)
        # Only cut back, so that it does not matter what is in them; to the checker it does.
        logs: tuple[list[object], ...] = (
            self._measured,  # type: ignore[assignment]
            self._decisions,
            self._happened,
            self._decided,
            self._effects,
            self._after_commit,
            self._confirmations,
        )
        lengths = [len(log) for log in logs]
        applied = len(self._applied)
        try:
            yield
        except BaseException:
            for before, after in self._applied[applied:][::-1]:
                self.state.apply(Undone(after.id, before))
            del self._applied[applied:]
            self._uncommitted = uncommitted
            for log, length in zip(logs, lengths, strict=True):
                del log[length:]
            raise

    def measured(
        self, job: Job, device: Device, ceiling: int, outcome: Outcome, start: str, at: float
    ) -> None:
        """Keep what a run was measured to use."""
        model = device.name if device.kind == "gpu" else ""
        self._measured.append((job, device.kind, ceiling, outcome, start, at, model))

    @property
    def unlearned(self) -> bool:
        """Whether something was measured that the ledger does not know yet."""
        return bool(self._measured)

    def after_commit(self, effect: Effect) -> None:
        """Perform this once all that has happened so far is on disk."""
        self._after_commit.append(effect)

    def confirm(self, confirmation: Confirmation) -> None:
        """Answer once all that has happened so far is on disk, or has failed to be."""
        self._confirmations.append(confirmation)

    def touch(self, number: int) -> None:
        """Plan again: something has changed about this job that is not in its record."""
        self._touched[number] = None
        self.changed = True

    def touch_waiting(self) -> None:
        """Plan again: something may have changed for all jobs that wait."""
        self._touched |= dict.fromkeys(job.id for job in self.state.waiting())
        self.changed = True

    def take_touched(self) -> list[int]:
        """The jobs that have changed since this was last called."""
        touched, self._touched = list(self._touched), {}
        return touched

    def find(self, number: int) -> Job | None:
        """A job, live or finished, as it is now; the ledger may not have heard of it yet."""
        return self.state.get(number) or self._uncommitted.get(number) or self.ledger.find(number)

    def job(self, number: int) -> Job:
        """The same; raises BadRequest if there is no such job."""
        job = self.find(number)
        if job is None:
            raise BadRequest(f"There is no job {number}.", "Run `sublet ps` to list jobs.")
        return job

    def uncommitted(self) -> list[int]:
        """The jobs that have changed since the last commit."""
        return list(self._uncommitted)

    def commit(self) -> Committed | CommitFailed:
        """Write all that is new; the caller performs what follows from it."""
        changes = [*self._happened, *self._decided]
        counted = self.counters.after(changes)
        try:
            for job in self._uncommitted.values():
                self.ledger.save(job)
            if changes:
                self.ledger.note(_COUNTS, counted.text())
            for measurement in self._measured:
                self.ledger.measurements.remember(*measurement)
            self.ledger.commit()
        except sqlite3.Error as error:
            self.ledger.rollback()
            confirmations, self._confirmations = self._confirmations, []
            return CommitFailed(error, self._undo(), confirmations)
        self._uncommitted.clear()
        self._measured.clear()
        self._applied.clear()
        self._decisions.clear()
        self.counters = counted
        committed = Committed([*self._effects, *self._after_commit], self._confirmations, changes)
        self._effects, self._after_commit, self._confirmations = [], [], []
        self._happened, self._decided = [], []
        return committed

    def _undo(self) -> list[Undo]:
        undone = self._decisions[::-1]
        self._applied = []
        self._decisions = []
        self._decided = []
        self._effects = []
        for before, after in undone:
            self.state.apply(Undone(after.id, before))
            self._touched[after.id] = None
            # One turn may decide twice about a job, or about one to which something has happened:
            # that is still to be written.
            if before is None:
                self._uncommitted.pop(after.id, None)
            else:
                self._uncommitted[after.id] = before
        return undone
