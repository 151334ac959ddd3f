"""Who wants to hear of which jobs."""

from collections.abc import Callable, Iterable

from sublet.broker.connections import ClientConnection
from sublet.wire.messages import Jobs
from sublet.wire.rows import JobRow


class Subscriptions:
    """Connections that stay open to be told of changes."""

    def __init__(self) -> None:
        self._jobs: dict[int, dict[ClientConnection, None]] = {}
        self._sessions: dict[ClientConnection, tuple[int, ...]] = {}

    def watch(self, session: ClientConnection, jobs: tuple[int, ...]) -> None:
        """This connection hears of these jobs from here on."""
        self.leave(session)
        self._sessions[session] = jobs
        for job in jobs:
            self._jobs.setdefault(job, {})[session] = None

    def leave(self, session: ClientConnection) -> None:
        """This connection hears of nothing any more."""
        for job in self._sessions.pop(session, ()):
            watching = self._jobs[job]
            watching.pop(session, None)
            if not watching:
                del self._jobs[job]

    def tell(self, changed: Iterable[int], row: Callable[[int], JobRow]) -> None:
        """Say how these jobs stand now, to those who watch them."""
        rows: dict[ClientConnection, list[JobRow]] = {}
        for job in changed:
            if job in self._jobs:
                now = row(job)
                for session in self._jobs[job]:
                    rows.setdefault(session, []).append(now)
        for session, news in rows.items():
            session.reply(Jobs(tuple(news)))
