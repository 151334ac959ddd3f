"""Follow the broker's snapshots: the devices and jobs as they are, again with each change."""

from collections.abc import Iterator

from msgspec import Struct

from sublet.client.connection import Connection, Reconnects, connect_or_start
from sublet.errors import InternalError
from sublet.home import Home
from sublet.wire.messages import Subscribe, Update
from sublet.wire.rows import DeviceRow, EventRow, JobRow


class View(Struct, frozen=True):
    """What the broker knows at one moment."""

    sequence: int
    devices: dict[str, DeviceRow]
    jobs: dict[int, JobRow]
    """The live jobs and those that ended last, by number."""
    events: tuple[EventRow, ...] = ()
    """What has happened since the view before."""
    left_out: int = 0
    """How many live jobs are not in it."""

    def after(self, update: Update) -> "View":
        """The view that an update makes of this one; raises InternalError if one is missing."""
        if not update.whole and update.sequence != self.sequence + 1:
            raise InternalError(f"update {update.sequence} came after {self.sequence}")
        devices = {} if update.whole else dict(self.devices)
        jobs = {} if update.whole else dict(self.jobs)
        devices |= {row.device.id: row for row in update.devices}
        jobs |= {row.id: row for row in update.jobs}
        for number in update.gone:
            jobs.pop(number, None)
        return View(update.sequence, devices, jobs, update.events, update.left_out)


def follow(home: Home | None = None) -> Iterator[View]:
    """The view now, and again whenever it changes; goes on with the next broker if one ends."""
    home = home or Home.find()
    reconnects = Reconnects(home)
    connection = connect_or_start(home)
    while True:
        try:
            yield from follow_connection(connection)
        finally:
            connection.close()
        connection = reconnects.connect()


def follow_connection(connection: Connection) -> Iterator[View]:
    """The same through one connection, until the broker ends."""
    connection.send(Subscribe())
    view = View(0, {}, {})
    while (reply := connection.receive()) is not None:
        assert isinstance(reply, Update)
        view = view.after(reply)
        yield view
