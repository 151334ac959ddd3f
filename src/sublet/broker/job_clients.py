"""The clients of jobs: their connections, and the streams that they brought."""

from sublet.broker.connections import ClientConnection
from sublet.domain.job import Job
from sublet.formats import packets
from sublet.keeper import process_tree
from sublet.wire.messages import Reply

GONE = "its client ended before it could start"
"""Why a job that waits is withdrawn."""


class JobClients:
    """The clients of live jobs. The streams are open as long as the client is connected."""

    def __init__(self) -> None:
        self._connections: dict[int, ClientConnection] = {}
        self._streams: dict[int, list[int]] = {}
        self._stopped: set[int] = set()
        self._last: dict[int, Reply] = {}
        """The last message that each was sent."""
        self._submitters: dict[int, ClientConnection] = {}
        """Who is to hear that the jobs up to this one were accepted."""

    def __contains__(self, job: int) -> bool:
        return job in self._connections

    def jobs(self) -> list[int]:
        """The jobs whose clients are connected."""
        return list(self._connections)

    def join(self, job: int, connection: ClientConnection, streams: list[int]) -> None:
        """This connection speaks for the job from here on."""
        self.part(job)
        connection.job = job
        self._connections[job] = connection
        self._streams[job] = streams

    def part(self, job: int) -> ClientConnection | None:
        """The job needs its client no longer; returns the connection, if it had one."""
        packets.close(self._streams.pop(job, []))
        self._stopped.discard(job)
        self._last.pop(job, None)
        return self._connections.pop(job, None)

    def submitted(self, job: int, connection: ClientConnection) -> None:
        """This connection waits to hear that the jobs up to this one were accepted."""
        self._submitters[job] = connection

    def take_submitter(self, job: int) -> ClientConnection | None:
        """Remove and return the client that waits to hear that this job was accepted."""
        return self._submitters.pop(job, None)

    def speaks_for(self, connection: ClientConnection) -> int | None:
        """The job of this connection, unless another connection has taken its place."""
        job = connection.job
        return job if job is not None and self._connections.get(job) is connection else None

    def stop(self, job: int, on: bool) -> None:
        """Somebody has stopped the job's command (Ctrl-Z), or has let it go on."""
        if on:
            self._stopped.add(job)
        else:
            self._stopped.discard(job)

    def is_stopped(self, job: int) -> bool:
        """Whether the job's command is stopped, so that its program is not to be started now."""
        return job in self._stopped

    def streams(self, job: int) -> list[int] | None:
        """The descriptors for the job's program; None if its client is not connected."""
        return self._streams.get(job)

    def send(self, job: int, message: Reply) -> None:
        """Send a message to the client of this job, if it is connected."""
        if job in self._connections:
            self._last[job] = message
            self._connections[job].reply(message)

    def send_if_new(self, job: int, message: Reply) -> None:
        """Send a message, unless it is the one that was sent last."""
        if self._last.get(job) != message:
            self.send(job, message)

    def broadcast(self, message: Reply) -> None:
        """Send a message to every client."""
        for connection in list(self._connections.values()):
            connection.reply(message)


def client_lives(job: Job) -> bool:
    """Whether the process for which the job is done still runs."""
    client = job.spec.client
    return client is not None and process_tree.is_alive(client.pid, client.start)
