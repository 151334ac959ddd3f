"""The wait of a process for a lease that it will hold itself, through the death of any broker.

Owns the conversation until a lease is offered, and the few words a person is told meanwhile. It
takes nothing: who takes it is told apart by its claim, see `lease`.
"""

import contextlib
import math
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from sublet.client.connection import Connection, Ends, connect, connect_or_start
from sublet.domain.lease import Lease
from sublet.errors import TimedOut, WorldError
from sublet.formats.lease import LeaseTerms as InsideLease
from sublet.home import Home
from sublet.text import plain
from sublet.units import format_seconds
from sublet.wire import PROTOCOL
from sublet.wire import messages as say
from sublet.wire.pack import pack

if TYPE_CHECKING:
    from sublet.wire.pack import Tree

PATIENCE = 5.0
"""Seconds for an answer that the broker has ready."""
_LOOK_FOR_BROKER = 0.25
_SAY_AGAIN = 10.0
"""Seconds between two lines about waiting."""


class LeaseRequest:
    """One request. Closing it withdraws what was not taken."""

    def __init__(self, spec: "Tree", home: Home, timeout: float | None) -> None:
        self.home = home
        self.token = os.urandom(16).hex()
        self._request = pack(
            {"type": "lodge", "spec": spec, "token": self.token, "protocol": PROTOCOL}
        )
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout if timeout is not None else math.inf
        self._reason = ""
        self._voice = _Reporter()
        self._ends = Ends(home)
        self._left = False
        self._connection: Connection | None = None

    def wait(self) -> tuple[InsideLease, Lease]:
        """Until a lease is there to be taken."""
        granted: Lease | None = None
        while True:
            match self._hear():
                case say.Waits(reason=reason):
                    self._reason = reason
                    self._voice.waits(reason)
                case say.Granted(lease=lease):
                    granted = lease
                case say.Offered(lease=text):
                    assert granted is not None  # The broker says that first.
                    self._voice.granted()
                    return InsideLease.from_json(text), granted
                case say.Leaving():
                    self._left = True
                case say.Ended(outcome=told):
                    raise WorldError(
                        f"The lease was not granted: {told.message or told.cause}.",
                        "Ask again; `sublet status` shows who holds what.",
                    )
                case None:
                    self._reconnect()

    def settle(self) -> None:
        """Hang up, and stay until the broker has seen whose lease it is."""
        if self._connection is not None:
            sock = self._connection.frames.sock
            sock.settimeout(PATIENCE)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
                while self._connection.receive() is not None:
                    pass

    def close(self) -> None:
        """Hang up: shut down, for a child forked meanwhile has the socket too."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.frames.sock.shutdown(socket.SHUT_RDWR)
            self._connection.close()

    def _hear(self) -> "say.Reply | None":
        """The next word of the broker; None if it is gone."""
        if self._connection is None:
            self._connection = connect_or_start(self.home)
            with contextlib.suppress(OSError):  # Found out when its answer does not come.
                self._connection.send(self._request)
        # Time is up only once it is known what there is to wait for.
        left = self._deadline - time.monotonic() if self._reason else math.inf
        self._connection.frames.sock.settimeout(max(left, 0.001) if left < math.inf else None)
        try:
            return self._connection.receive()
        except TimeoutError:
            self._time_is_up()
        except OSError:
            pass
        return None

    def _reconnect(self) -> None:
        """The broker is gone; the request is in its ledger, and the next one knows its token."""
        self.close()
        self._connection = None
        if self._left:
            # Somebody wanted it to end: wait for the next one, and start none.
            while (found := connect(self.home)) is None:
                if time.monotonic() >= self._deadline:
                    self._time_is_up()
                time.sleep(_LOOK_FOR_BROKER)
            found.close()
            self._left = False
        else:
            self._ends.another()

    def _time_is_up(self) -> NoReturn:
        when = f"in {format_seconds(self._timeout)}" if self._timeout else "at once"
        raise TimedOut(
            f"No lease {when}: {self._reason}.",
            "Ask for less, give it more time, or see in `sublet status` who could end.",
        )


class _Reporter:
    """A few words about waiting, for a person: nobody else reads them."""

    def __init__(self) -> None:
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self._heard = terminal or in_notebook()
        self._since = time.monotonic()
        self._said: tuple[float, str] | None = None

    def waits(self, reason: str) -> None:
        now = time.monotonic()
        if self._said is None or (self._said[1] != reason and now - self._said[0] > _SAY_AGAIN):
            self._said = (now, reason)
            self._say(f"waiting: {reason}")

    def granted(self) -> None:
        if self._said is not None:
            self._say(f"granted after {format_seconds(time.monotonic() - self._since)}")

    def _say(self, text: str) -> None:
        if self._heard:
            with contextlib.suppress(OSError, ValueError):
                print(f"sublet: {plain(text)}", file=sys.stderr, flush=True)


def in_notebook() -> bool:
    """Whether this process is the kernel of one."""
    shell: Callable[[], object] = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    return "ipykernel" in sys.modules and shell() is not None
