"""A process asks for a lease that it will hold itself, and waits, through the death of any broker.

Owns the connection until a lease is offered, and the messages to the user meanwhile. It claims
nothing; `lease` does that.
"""

import contextlib
import math
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from sublet.client.connection import Connection, Reconnects, connect_or_start
from sublet.domain.lease import Lease
from sublet.errors import TimedOut, WorldError
from sublet.formats.lease import LeaseTerms
from sublet.home import Home
from sublet.text import plain
from sublet.units import format_seconds
from sublet.wire import PROTOCOL, messages
from sublet.wire.pack import pack

if TYPE_CHECKING:
    from sublet.domain.job_fields import JobFields

PATIENCE = 5.0
"""Seconds for an answer that the broker has ready."""
_REPORT_AGAIN = 10.0
"""Seconds between two lines about waiting."""


class LeaseRequest:
    """One request for a lease. Closing it withdraws it, unless the lease was claimed."""

    def __init__(self, spec: "JobFields", home: Home, timeout: float | None) -> None:
        self.home = home
        self.token = os.urandom(16).hex()
        self._request = pack(
            {"type": "lodge", "spec": spec, "token": self.token, "protocol": PROTOCOL}
        )
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout if timeout is not None else math.inf
        self._reason = ""
        self._reporter = _Reporter()
        self._reconnects = Reconnects(home)
        self._connection: Connection | None = None

    def wait(self) -> tuple[LeaseTerms, Lease]:
        """Wait until a lease is offered: the terms for this process, and the broker's record."""
        granted: Lease | None = None
        while True:
            match self._receive():
                case messages.Waits(reason=reason):
                    self._reason = reason
                    self._reporter.waits(reason)
                case messages.Granted(lease=lease):
                    granted = lease
                case messages.Offered(lease=text):
                    assert granted is not None  # The broker says that first.
                    self._reporter.granted()
                    return LeaseTerms.from_json(text), granted
                case messages.Leaving():
                    self._reconnects.announced = True
                case messages.Ended(outcome=outcome):
                    raise WorldError(
                        f"The lease was not granted: {outcome.message or outcome.cause}.",
                        "Ask again; `sublet status` shows who holds what.",
                    )
                case None:
                    self._reconnect()

    def settle(self) -> None:
        """Wait until the broker has seen that the lease was claimed."""
        if self._connection is not None:
            sock = self._connection.frames.sock
            sock.settimeout(PATIENCE)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
                while self._connection.receive() is not None:
                    pass

    def close(self) -> None:
        """Shut the connection down: a child that was forked meanwhile has the socket too."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.frames.sock.shutdown(socket.SHUT_RDWR)
            self._connection.close()

    def _receive(self) -> "messages.Reply | None":
        """The next reply; None if the broker is gone."""
        if self._connection is None:
            self._connection = self._ask(connect_or_start(self.home))
        # The time counts only once the reason for waiting is known, which the error names.
        left = self._deadline - time.monotonic() if self._reason else math.inf
        self._connection.frames.sock.settimeout(max(left, 0.001) if left < math.inf else None)
        try:
            return self._connection.receive()
        except TimeoutError:
            self._time_is_up()
        except OSError:
            pass
        return None

    def _ask(self, connection: Connection) -> Connection:
        with contextlib.suppress(OSError):  # It shows when no answer comes.
            connection.send(self._request)
        return connection

    def _reconnect(self) -> None:
        """Turn to the next broker, which knows the request's token from the ledger."""
        self.close()
        self._connection = None
        self._connection = self._ask(self._reconnects.connect(self._pause))

    def _pause(self, seconds: float) -> bool:
        if time.monotonic() >= self._deadline:
            self._time_is_up()
        time.sleep(seconds)
        return False

    def _time_is_up(self) -> NoReturn:
        when = f"in {format_seconds(self._timeout)}" if self._timeout else "at once"
        raise TimedOut(
            f"No lease {when}: {self._reason}.",
            "Ask for less, give it more time, or see in `sublet status` who could end.",
        )


class _Reporter:
    """Tells a person at a terminal or a notebook that the process waits, and what for."""

    def __init__(self) -> None:
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self._shown = terminal or in_notebook()
        self._since = time.monotonic()
        self._last: tuple[float, str] | None = None

    def waits(self, reason: str) -> None:
        now = time.monotonic()
        if self._last is None or (self._last[1] != reason and now - self._last[0] > _REPORT_AGAIN):
            self._last = (now, reason)
            self._print(f"waiting: {reason}")

    def granted(self) -> None:
        if self._last is not None:
            self._print(f"granted after {format_seconds(time.monotonic() - self._since)}")

    def _print(self, text: str) -> None:
        if self._shown:
            with contextlib.suppress(OSError, ValueError):
                print(f"sublet: {plain(text)}", file=sys.stderr, flush=True)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell: Callable[[], object] = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    return "ipykernel" in sys.modules and shell() is not None
