"""One conversation about one job in the foreground, through the death of any broker.

Sends the job once, hears how it fares, and attaches to it again when another broker has taken
over. It never looks at signals or at what the program says.
"""

import contextlib
import os
import select
import sys

from sublet.client.connection import Connection, Ends, connect, connect_or_start
from sublet.keeper import process_tree
from sublet.wire import PROTOCOL
from sublet.wire.pack import pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from sublet.home import Home
    from sublet.wire.messages import Ended, Granted, Retried, Started
    from sublet.wire.pack import Tree

    class Listener(Protocol):
        """Who is told how the job fares."""

        def waits(self, reason: str) -> None:
            """It waits, and this is what for."""

        def granted(self, message: Granted) -> None:
            """It has a lease."""

        def started(self, message: Started) -> None:
            """Its program runs."""

        def retried(self, message: Retried) -> None:
            """It ran out of memory and is tried again."""


_LEASE = "SUBLET_LEASE"
"""As in `sublet.formats.lease`, which takes a while to load."""
_LOOK_FOR_BROKER = 0.25


class JobFollower:
    """A job that was sent, and what was heard of it.

    `streams` are the program's descriptors; they stay the caller's, and must stay open until the
    job has ended: the next broker is given them too. `wake` becomes readable when the caller has
    something to do that cannot wait for a broker.
    """

    def __init__(
        self,
        spec: "Tree",
        home: "Home",
        listener: "Listener",
        streams: list[int],
        wake: int | None = None,
    ) -> None:
        self.job: int | None = None
        self.program: int | None = None
        """The worker's process, while it runs."""
        self.granted = False
        self._spec = spec
        self._home = home
        self._listener = listener
        self._streams = streams
        self._wake = [] if wake is None else [wake]
        self._token = os.urandom(16).hex()
        self._left = False
        self._ends = Ends(home)
        self._connection = self._connect()

    def fileno(self) -> int:
        """What to wait on; it changes when the broker does."""
        return self._connection.frames.sock.fileno()

    def hear(self) -> "Ended | None":
        """Take in all that the broker has sent; what is buffered would not wake us again.

        How the job ended, once it has. Raises what the broker refused.
        """
        from sublet.wire import messages as say

        try:
            replies = self._connection.receive_all()
        except OSError:
            replies = []
        for reply in replies:
            match reply:
                case say.Accepted(job=number):
                    self.job = number
                case say.Waits(reason=reason):
                    self.program, self.granted = None, False
                    self._listener.waits(reason)
                case say.Granted():
                    self.granted = True
                    self._listener.granted(reply)
                case say.Started(pid=pid):
                    self.program = pid
                    self._listener.started(reply)
                case say.Retried():
                    self.program, self.granted = None, False
                    self._listener.retried(reply)
                case say.Leaving():
                    self._left = True
                case say.Ended():
                    return reply
        if not replies:
            self._reconnect()
        return None

    def signal(self, number: int, early: bool = False) -> None:
        """Send a signal to the program; an `early` one only has its start given up, if it has not
        begun yet."""
        with contextlib.suppress(OSError):
            self._connection.send(pack({"type": "signal", "number": number, "early": early}))

    def close(self) -> None:
        """Hang up; a job that has not ended does so now."""
        self._connection.close()

    def _connect(self) -> Connection:
        connection = connect_or_start(self._home)
        request: Tree = {"type": "run", "spec": self._spec}
        if self.job is not None:
            request = {"type": "attach", "job": self.job}
        elif (under := _under(self._home)) is not None:
            request["under"] = under
        request |= {"token": self._token, "protocol": PROTOCOL}
        with contextlib.suppress(OSError):  # Found out when its answer does not come.
            connection.send(pack(request), self._streams)
        return connection

    def _reconnect(self) -> None:
        """The broker is gone; the job is in its ledger, so the next one knows it."""
        self._connection.close()
        if self._left:
            self._await_broker()
        else:
            self._ends.another()
        self._left = False
        self._connection = self._connect()

    def _await_broker(self) -> None:
        """Somebody wanted the broker to end: do not start another before there is a need.

        There is one when the program has ended or the caller has something to do.
        """
        poll = select.poll()
        for number in self._wake:
            poll.register(number, select.POLLIN)
        while (found := connect(self._home)) is None:
            if poll.poll(_LOOK_FOR_BROKER * 1000):
                return
            if self.program is not None and process_tree.start_time(self.program) is None:
                return
        found.close()


def _under(home: "Home") -> "Tree | None":
    """The lease of this home that this process runs under, if it does."""
    if _LEASE not in os.environ and "sublet.formats.lease" not in sys.modules:
        return None
    from sublet.inside.current_lease import current

    lease = current()
    try:
        ours = lease is not None and os.path.samefile(os.path.dirname(lease.dir), home.runs)
    except OSError:
        ours = False
    return {"job": lease.job, "token": lease.token} if lease is not None and ours else None
