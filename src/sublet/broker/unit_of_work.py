"""State and ledger, kept in step.

What has happened stays true even if it cannot be written yet. What was decided is undone if it
cannot be written: nothing has been done about it, because effects of a decision wait for the disk.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import NamedTuple

from sublet.broker.events import Event, Undone
from sublet.broker.ledger import Ledger
from sublet.broker.state import State
from sublet.domain.job import Job, Outcome

Effect = Callable[[], None]


class Undo(NamedTuple):
    """A decision that could not be written: how the job was, and what it would have become."""

    before: Job | None
    after: Job


class UnitOfWork:
    """The broker's memory and its disk."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        # Before it is read: what an earlier broker commits is seen here, or refused there.
        ledger.claim()
        self.state = State(ledger.live())
        self.changed = True
        """Whether there is a reason to plan again."""
        self._unwritten: dict[int, Job] = {}
        self._touched: dict[int, None] = {}
        self._measured: list[tuple[Job, str, int, Outcome, str, float]] = []
        self._applied: list[Undo] = []
        """All that was taken in since the last write."""
        self._decisions: list[Undo] = []
        self._effects: list[Effect] = []
        self._when_written: list[Effect] = []
        self._asked: list[tuple[Effect, Callable[[sqlite3.Error], None]]] = []

    @property
    def news(self) -> bool:
        """Whether there is something to plan for or to write down."""
        return self.changed or bool(self._unwritten or self._asked)

    def happened(self, event: Event) -> Job:
        """Take in an event of the world; the job as it is now."""
        self.changed = True
        return self._apply(event).after

    def decided(self, before: Job | None, event: Event, *effects: Effect) -> None:
        """Take in a decision of ours, to be followed by these effects once it is on disk."""
        after = self._apply(event).after
        self._decisions.append(Undo(before, after))
        self._effects += effects
        self.changed = self.changed or before is None

    def _apply(self, event: Event) -> Undo:
        number = event.job.id if isinstance(event.job, Job) else event.job
        before = self.state.get(number)
        after = self.state.apply(event)
        assert after is not None
        applied = Undo(before, after)
        self._applied.append(applied)
        self._unwritten[number] = after
        self._touched[number] = None
        return applied

    @contextlib.contextmanager
    def unit(self) -> Iterator[None]:
        """What is taken in until the dedent is taken in whole, or not at all if it is left by an
        exception."""
        unwritten, measured = dict(self._unwritten), len(self._measured)
        applied, decisions = len(self._applied), len(self._decisions)
        effects, when_written = len(self._effects), len(self._when_written)
        asked = len(self._asked)
        try:
            yield
        except BaseException:
            for before, after in self._applied[applied:][::-1]:
                self.state.apply(Undone(after.id, before))
            self._unwritten = unwritten
            del self._measured[measured:]
            del self._applied[applied:]
            del self._decisions[decisions:]
            del self._effects[effects:]
            del self._when_written[when_written:]
            del self._asked[asked:]
            raise

    def measured(
        self, job: Job, kind: str, ceiling: int, outcome: Outcome, start: str, at: float
    ) -> None:
        """Keep what a run was measured to use."""
        self._measured.append((job, kind, ceiling, outcome, start, at))

    @property
    def unlearned(self) -> bool:
        """Whether something was measured that the ledger does not know yet."""
        return bool(self._measured)

    def when_written(self, effect: Effect) -> None:
        """Do this once all that has happened so far is on disk."""
        self._when_written.append(effect)

    def answer(self, written: Effect, failed: Callable[[sqlite3.Error], None]) -> None:
        """Somebody waits for an answer: `written` once all that has happened so far is on disk,
        `failed` if the disk will not have it now."""
        self._asked.append((written, failed))

    def take_touched(self) -> list[int]:
        """The jobs that have changed since this was last asked."""
        touched, self._touched = list(self._touched), {}
        return touched

    def find(self, number: int) -> Job | None:
        """A job, live or finished, as it is now; the ledger may not have heard of it yet."""
        return self.state.get(number) or self._unwritten.get(number) or self.ledger.find(number)

    def unwritten(self) -> list[int]:
        """The jobs that have changed since the last write."""
        return list(self._unwritten)

    def write(self) -> tuple[list[Undo], sqlite3.Error | None]:
        """Write all that is new, then do what waits for it.

        If the disk will not have it: the decisions that were undone, and the error.
        """
        try:
            for job in self._unwritten.values():
                self.ledger.save(job)
            for measurement in self._measured:
                self.ledger.measurements.remember(*measurement)
            self.ledger.commit()
        except sqlite3.Error as error:
            self.ledger.rollback()
            asked, self._asked = self._asked, []
            for _, failed in asked:
                failed(error)
            return self._undo(), error
        self._unwritten.clear()
        self._measured.clear()
        self._applied.clear()
        self._decisions.clear()
        effects = [*self._effects, *self._when_written, *(written for written, _ in self._asked)]
        self._effects, self._when_written, self._asked = [], [], []
        for effect in effects:
            effect()
        return [], None

    def _undo(self) -> list[Undo]:
        undone = self._decisions[::-1]
        self._applied = []
        self._decisions = []
        self._effects = []
        for before, after in undone:
            self.state.apply(Undone(after.id, before))
            self._touched[after.id] = None
            # One turn may decide twice about a job, or about one to which something has happened:
            # that is still to be written.
            if before is None:
                self._unwritten.pop(after.id, None)
            else:
                self._unwritten[after.id] = before
        return undone
