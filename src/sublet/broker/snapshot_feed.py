"""A subscription to snapshots: the whole once, then what has changed, for views that stay open.

What is kept is bounded: one view of the last moment, the latest events, and for each subscriber at
most `_MOST_UNSENT` bytes and one update. A subscriber that does not read misses updates; once it
has read what was sent, it gets the whole again.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from sublet.broker.connections import ClientConnection
from sublet.broker.snapshots import Snapshots, state_name
from sublet.broker.unit_of_work import UnitOfWork
from sublet.clock import Clock
from sublet.reactor import Reactor
from sublet.wire.messages import Update
from sublet.wire.rows import DeviceRow, EventRow, JobRow

_PERIOD = 1.0
"""Seconds between looks at what changes without an event: memory in use, strangers."""
_SOON = 0.05
"""Seconds in which changes are gathered into one update."""
_REST = 5.0
"""For so many times as long as a look took there is no other: with a thousand jobs it takes a
while, and the broker has other things to do."""
_MOST_LIVE = 1000
_MOST_FINISHED = 100
_MOST_EVENTS = 200
_MOST_UNSENT = 1 << 20
"""Bytes that a subscriber may be behind before it misses updates."""


class _View(NamedTuple):
    devices: dict[str, DeviceRow]
    jobs: dict[int, JobRow]
    left_out: int


class SnapshotFeed:
    """The subscribers, and what they were sent last."""

    def __init__(
        self, snapshots: Snapshots, work: UnitOfWork, clock: Clock, reactor: Reactor
    ) -> None:
        self._snapshots = snapshots
        self._work = work
        self._clock = clock
        self._reactor = reactor
        self._behind: dict[ClientConnection, bool] = {}
        """The subscribers, and whether each has missed an update."""
        self._view = _View({}, {}, 0)
        self._sequence = 0
        self._events: deque[EventRow] = deque(maxlen=_MOST_EVENTS)
        self._states: dict[int, str] = {}
        self._took = 0.0
        """Seconds that the last look took."""
        self._looked = 0.0
        """When it was over."""

    def subscribe(self, connection: ClientConnection) -> None:
        """Send the whole to this connection, and from here on what changes."""
        if not self._behind:
            self._view = self._look()
            self._states = {number: row.state for number, row in self._view.jobs.items()}
            self._events.clear()
        self._behind[connection] = False
        connection.reply(self._whole())
        self._reactor.call_once(_PERIOD, self._look_again)

    def leave(self, connection: ClientConnection) -> None:
        """Forget this connection, which is closed."""
        self._behind.pop(connection, None)

    def note(self, changed: Iterable[int]) -> None:
        """These jobs have changed: tell the subscribers soon."""
        if not self._behind:
            return
        for number in changed:
            job = self._work.find(number)
            if job is None:
                continue
            state = state_name(job)
            if self._states.get(number) != state:
                self._states[number] = state
                at = self._clock.wall()
                self._events.append(EventRow(at, number, job.name, state, job.attempt))
        rested = self._looked + _REST * self._took - self._clock.now()
        self._reactor.call_once(max(_SOON, rested), self._publish)

    def _look_again(self) -> None:
        self._publish()
        if self._behind:
            self._reactor.call_once(_PERIOD, self._look_again)

    def _publish(self) -> None:
        """Send what has changed to those who read, and the whole to those who do so again."""
        if not self._behind:
            return
        before, self._view = self._view, self._look()
        self._states = {
            number: state
            for number, state in self._states.items()
            if number in self._view.jobs or number in self._work.state
        }
        update = self._delta(before)
        if update is not None:
            self._sequence = update.sequence
        for connection, behind in list(self._behind.items()):
            unsent = connection.frames.unsent
            if behind and not unsent:
                self._behind[connection] = False
                connection.reply(self._whole())
            elif not behind and update is not None:
                self._behind[connection] = unsent > _MOST_UNSENT
                if not self._behind[connection]:
                    connection.reply(update)

    def _delta(self, before: _View) -> Update | None:
        """What has changed since this view; None if nothing has."""
        now, events = self._view, tuple(self._events)
        self._events.clear()
        devices = [row for name, row in now.devices.items() if before.devices.get(name) != row]
        jobs = [row for number, row in now.jobs.items() if _moved(before.jobs.get(number), row)]
        gone = tuple(before.jobs.keys() - now.jobs.keys())
        if not (devices or jobs or gone or events or now.left_out != before.left_out):
            return None
        return Update(
            self._sequence + 1, False, tuple(devices), tuple(jobs), gone, events, now.left_out
        )

    def _whole(self) -> Update:
        """All of the last view, as a subscriber needs it to apply the next change."""
        devices, jobs, left_out = self._view
        return Update(
            self._sequence,
            True,
            tuple(devices.values()),
            tuple(jobs.values()),
            left_out=left_out,
        )

    def _look(self) -> _View:
        began = self._clock.now()
        shown = self._snapshots.rows((), _MOST_LIVE, _MOST_FINISHED)
        devices = {row.device.id: row for row in self._snapshots.devices()}
        self._looked = self._clock.now()
        self._took = self._looked - began
        return _View(devices, {row.id: row for row in shown.rows}, shown.left_out)


def _moved(before: JobRow | None, now: JobRow) -> bool:
    """Whether a row has changed by more than the time that goes by."""
    if before is None:
        return True
    return replace(before, starts_in=None, ends_in=None) != replace(
        now, starts_in=None, ends_in=None
    )
