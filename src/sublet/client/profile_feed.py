"""The broker's views while a job is profiled, followed in a thread."""

import contextlib
import socket
import threading
import time

from sublet.client.connection import Connection, connect
from sublet.client.snapshot_feed import View, follow_connection
from sublet.client.trace import Clocks, Trace
from sublet.errors import BrokerGone, SubletError
from sublet.home import Home
from sublet.wire.rows import JobRow

_EVERY = 0.1
_LONGEST_AWAY = 60.0
"""Seconds without a broker after which it is not expected back. None is started from here: somebody
may have ended the last one on purpose."""


class ProfileFeed:
    """The latest view, and the time line that all of them make."""

    def __init__(self, home: Home) -> None:
        self.view = View(0, {}, {})
        self.trace = Trace(Clocks(time.time(), time.monotonic_ns()))
        self._home = home
        self._connection: Connection | None = None
        self._last = time.monotonic()
        """When there was a broker."""
        self._ended = False
        self._thread = threading.Thread(target=self._follow, name="sublet-feed", daemon=True)

    def __enter__(self) -> "ProfileFeed":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.frames.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(5.0)

    def row(self, job: int) -> JobRow | None:
        """The job as it is now; None before the first view."""
        if self._connection is None and time.monotonic() - self._last > _LONGEST_AWAY:
            raise BrokerGone("The broker has ended.", "`sublet ps` starts another.")
        return self.view.jobs.get(job)

    def _follow(self) -> None:
        while not self._ended:
            with contextlib.suppress(OSError, SubletError):  # The next broker is asked.
                self._connection = connect(self._home)
                if self._connection is not None:
                    for view in follow_connection(self._connection):
                        self.trace.see(view, time.monotonic_ns())
                        self.view = view
            connection, self._connection = self._connection, None
            if connection is not None:
                self._last = time.monotonic()
                connection.close()
            if not self._ended:
                time.sleep(_EVERY)
