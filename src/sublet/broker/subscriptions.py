"""Connections that follow the rows of some jobs."""

from collections.abc import Callable, Iterable

from sublet.broker.connections import ClientConnection
from sublet.wire.messages import Jobs
from sublet.wire.rows import JobRow


class Subscriptions:
    """Sends each watching connection the rows of its jobs that have changed."""

    def __init__(self) -> None:
        self._jobs: dict[int, dict[ClientConnection, None]] = {}
        self._connections: dict[ClientConnection, tuple[int, ...]] = {}

    def watch(self, connection: ClientConnection, jobs: tuple[int, ...]) -> None:
        """Send this connection the rows of these jobs whenever one changes."""
        self.leave(connection)
        self._connections[connection] = jobs
        for job in jobs:
            self._jobs.setdefault(job, {})[connection] = None

    def leave(self, connection: ClientConnection) -> None:
        """Stop sending to this connection."""
        for job in self._connections.pop(connection, ()):
            watching = self._jobs[job]
            watching.pop(connection, None)
            if not watching:
                del self._jobs[job]

    def publish(self, changed: Iterable[int], row: Callable[[int], JobRow]) -> None:
        """Send the rows of these jobs to those who watch them."""
        rows: dict[ClientConnection, list[JobRow]] = {}
        for job in changed:
            if job in self._jobs:
                now = row(job)
                for connection in self._jobs[job]:
                    rows.setdefault(connection, []).append(now)
        for connection, news in rows.items():
            connection.reply(Jobs(tuple(news)))
