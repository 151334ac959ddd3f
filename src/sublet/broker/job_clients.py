"""Who is at the other end of a job: its client's connection, and the streams it brought."""

import os

from sublet.broker.connections import ClientConnection
from sublet.wire.messages import Reply

GONE = "its client ended before it could start"
"""Why a job that waits is withdrawn."""


class JobClients:
    """The clients of live jobs. The streams are open as long as the client is here."""

    def __init__(self) -> None:
        self._connections: dict[int, ClientConnection] = {}
        self._streams: dict[int, list[int]] = {}
        self._stopped: set[int] = set()
        self._last: dict[int, Reply] = {}
        """What each was told last."""

    def __contains__(self, job: int) -> bool:
        return job in self._connections

    def jobs(self) -> list[int]:
        """The jobs whose clients are here."""
        return list(self._connections)

    def join(self, job: int, connection: ClientConnection, streams: list[int]) -> None:
        """This connection speaks for the job from here on."""
        self.part(job)
        connection.job = job
        self._connections[job] = connection
        self._streams[job] = streams

    def part(self, job: int) -> ClientConnection | None:
        """The job needs its client no longer; returns the connection, if it had one."""
        close(self._streams.pop(job, []))
        self._stopped.discard(job)
        self._last.pop(job, None)
        return self._connections.pop(job, None)

    def speaks_for(self, connection: ClientConnection) -> int | None:
        """The job of this connection, unless another one has taken its place."""
        job = connection.job
        return job if job is not None and self._connections.get(job) is connection else None

    def stop(self, job: int, on: bool) -> None:
        """Somebody has stopped the job's command (Ctrl-Z), or has let it go on."""
        if on:
            self._stopped.add(job)
        else:
            self._stopped.discard(job)

    def is_stopped(self, job: int) -> bool:
        """Whether its program is not to be started now."""
        return job in self._stopped

    def streams(self, job: int) -> list[int] | None:
        """The three descriptors of its program."""
        return self._streams.get(job)

    def send(self, job: int, message: Reply) -> None:
        """Say something to whoever speaks for the job."""
        if job in self._connections:
            self._last[job] = message
            self._connections[job].reply(message)

    def send_if_new(self, job: int, message: Reply) -> None:
        """Say something, unless that is what was said last."""
        if self._last.get(job) != message:
            self.send(job, message)

    def broadcast(self, message: Reply) -> None:
        """Say something to everybody."""
        for connection in list(self._connections.values()):
            connection.reply(message)


def close(streams: list[int]) -> None:
    """Close descriptors that nobody will use."""
    for number in streams:
        os.close(number)
