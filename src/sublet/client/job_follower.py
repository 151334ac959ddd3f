"""Follows one foreground job from its submission to its end, through the death of any broker.

Sends the job once, receives its news, and attaches to it again when another broker has taken over.
Never looks at signals or at the program's output.
"""

import contextlib
import os
import select
import sys

from sublet.client.connection import Connection, Reconnects, connect_or_start
from sublet.errors import WorldError
from sublet.keeper import process_tree
from sublet.wire import PROTOCOL
from sublet.wire.pack import pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from sublet.domain.job_fields import JobFields
    from sublet.home import Home
    from sublet.wire.messages import Ended, Granted, Retried, Started
    from sublet.wire.pack import Tree

    class Listener(Protocol):
        """Called when the state of the job changes."""

        def waits(self, reason: str) -> None:
            """The job waits, for this reason."""

        def granted(self, message: Granted) -> None:
            """The job has a lease."""

        def started(self, message: Started) -> None:
            """The program was started."""

        def lacks_memory(self, reason: str) -> None:
            """An allocation of the program waits for memory, and there is none."""

        def retried(self, message: Retried) -> None:
            """The program ran out of memory and is started again with more."""


_LEASE = "SUBLET_LEASE"
"""The same as in `sublet.formats.lease`, which takes a while to load."""


class JobFollower:
    """A job that was sent to the broker, and its state as far as it is known.

    `streams` are the program's descriptors. The caller owns them and keeps them open until the job
    has ended: the next broker gets them too. `wake` becomes readable when the caller has something
    to do that cannot wait for a broker.
    """

    def __init__(
        self,
        spec: "JobFields",
        home: "Home",
        listener: "Listener",
        streams: list[int],
        wake: int | None = None,
    ) -> None:
        self.job: int | None = None
        self.program: int | None = None
        """The worker's process, while it runs."""
        self._program_start: int | None = None
        self.granted = False
        self._spec = spec
        self._home = home
        self._listener = listener
        self._streams = streams
        self._wake = wake
        self._token = os.urandom(16).hex()
        self._reconnects = Reconnects(home)
        self._connection: Connection | None = self._send_job(connect_or_start(home))
        self._alarm: Alarm | None = None
        """Rings when the next broker is to be tried, if none can start at the moment."""
        self.fault: WorldError | None = None
        """Why no broker can start at the moment."""

    def fileno(self) -> int:
        """The descriptor to wait on; it changes with each broker."""
        if self._connection is None:
            assert self._alarm is not None
            return self._alarm.fileno()
        return self._connection.frames.sock.fileno()

    def hear(self) -> "Ended | None":
        """Handle all that the broker has sent, for what is buffered would not wake us again.

        Returns how the job ended, once it has; raises the error if the broker refuses it.
        """
        from sublet.wire import messages

        if self._connection is None:
            self._try_to_connect()
            return None
        try:
            replies = self._connection.receive_all()
        except OSError:
            replies = []
        for reply in replies:
            match reply:
                case messages.Accepted(job=number):
                    self.job = number
                case messages.Waits(reason=reason):
                    self.program, self.granted = None, False
                    self._listener.waits(reason)
                case messages.Granted():
                    self.granted = True
                    self._listener.granted(reply)
                case messages.Started(pid=pid):
                    self.program, self._program_start = pid, process_tree.start_time(pid)
                    self._listener.started(reply)
                case messages.LacksMemory(reason=reason):
                    self._listener.lacks_memory(reason)
                case messages.Retried():
                    self.program, self.granted = None, False
                    self._listener.retried(reply)
                case messages.Leaving():
                    self._reconnects.announced = True
                case messages.Ended():
                    return reply
        if not replies:
            self._reconnect()
        return None

    def signal(self, number: int, early: bool = False) -> bool:
        """Send a signal to the program. An `early` one only cancels a start that has not begun.

        A broker that somebody has stopped is woken. Where none can start, the program is signalled
        directly; False if none is known to run.
        """
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.send(pack({"type": "signal", "number": number, "early": early}))
            self._connection.wake_broker()
            return True
        if self.program is None or not self._program_lives():
            return False
        with contextlib.suppress(OSError):
            os.killpg(self.program, number)
        return True

    def close(self) -> None:
        """Close the connection; a job that has not ended is ended by this."""
        for one in (self._connection, self._alarm):
            if one is not None:
                one.close()

    def _send_job(self, connection: Connection) -> Connection:
        """Send the job to a broker, or attach to it if it was accepted by another one."""
        request: Tree = {"type": "run", "spec": self._spec}
        if self.job is not None:
            request = {"type": "attach", "job": self.job}
        elif (under := _under(self._home)) is not None:
            request["under"] = under
        request |= {"token": self._token, "protocol": PROTOCOL}
        with contextlib.suppress(OSError):  # It shows when no answer comes.
            connection.send(pack(request), self._streams)
        return connection

    def _reconnect(self) -> None:
        """Turn to the next broker, which knows the job from the ledger."""
        assert self._connection is not None
        self._connection.close()
        self._reconnects.wait(self._needs_broker)
        self._try_to_connect()

    def _try_to_connect(self) -> None:
        """Connect to the next broker; if none can start, have the alarm ring for another try."""
        if self._alarm is not None:
            self._alarm.close()
        self._connection = self._alarm = self.fault = None
        try:
            self._connection = self._send_job(self._reconnects.try_to_connect())
        except WorldError as error:
            self.fault = error
            self._alarm = Alarm(self._reconnects.bear(error, self._program_lives()))

    def _needs_broker(self, seconds: float) -> bool:
        """Whether, within this time, the program has ended or the caller has something to do."""
        poll = select.poll()
        if self._wake is not None:
            poll.register(self._wake, select.POLLIN)
        if poll.poll(seconds * 1000):
            return True
        return self.program is not None and not self._program_lives()

    def _program_lives(self) -> bool:
        return (
            self.program is not None
            and self._program_start is not None
            and process_tree.is_alive(self.program, self._program_start)
        )


class Alarm:
    """A descriptor that can be read after some seconds."""

    def __init__(self, seconds: float) -> None:
        import threading  # Rarely needed, and not free.

        self._reading, writing = os.pipe()

        def ring() -> None:
            with contextlib.suppress(OSError):  # Nobody waits for it any more.
                os.write(writing, b"!")
            os.close(writing)

        timer = threading.Timer(seconds, ring)
        timer.daemon = True
        timer.start()

    def fileno(self) -> int:
        return self._reading

    def close(self) -> None:
        os.close(self._reading)


def _under(home: "Home") -> "Tree | None":
    """The lease that this process runs under, if the same broker has granted it."""
    if _LEASE not in os.environ and "sublet.formats.lease" not in sys.modules:
        return None
    from sublet.inside.current_lease import current

    lease = current()
    try:
        ours = lease is not None and os.path.samefile(os.path.dirname(lease.dir), home.runs)
    except OSError:
        ours = False
    return {"job": lease.job, "token": lease.token} if lease is not None and ours else None
