"""Hears the broker's views in a thread, and looks for the next broker when one has gone.

It never starts one: whoever said `sublet down` wants none.
"""

import contextlib
import socket
import threading
from collections.abc import Callable

from sublet.client.connection import Connection, connect
from sublet.client.snapshot_feed import View, follow_connection
from sublet.errors import SubletError
from sublet.home import Home

_LOOK = 1.0
"""Seconds between looks for a broker."""


class Feed:
    """One thread; what it hears is called back from there."""

    def __init__(
        self,
        home: Home,
        connection: Connection,
        on_view: Callable[[View], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._home = home
        self._connection: Connection | None = connection
        self._on_view = on_view
        self._on_lost = on_lost
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and wait for the thread."""
        self._closed.set()
        if (connection := self._connection) is not None:
            with contextlib.suppress(OSError):  # The broker was quicker.
                connection.frames.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _run(self) -> None:
        while (connection := self._connection) is not None:
            why = "The broker has ended."
            try:
                for view in follow_connection(connection):
                    if self._closed.is_set():
                        break
                    self._on_view(view)
            except SubletError as error:
                why = error.message
            except OSError:
                pass  # It was killed.
            connection.close()
            if self._closed.is_set():
                return
            self._on_lost(why)
            self._connection = self._next()

    def _next(self) -> Connection | None:
        while not self._closed.wait(_LOOK):
            with contextlib.suppress(SubletError, OSError):
                if (found := connect(self._home)) is not None:
                    return found
        return None
