"""Clients over real sockets, and what they do to the loop when they leave."""

import socket
import struct
from collections.abc import Callable, Iterator

import msgspec
import pytest

from sublet.broker.sessions import Session
from sublet.hub import Hub
from sublet.wire import PROTOCOL
from sublet.wire import messages as say
from sublet.wire.frames import Frames


class Listener:
    """A desk that writes everything down."""

    def __init__(self) -> None:
        self.heard: list[say.Request] = []
        self.gone: list[Session] = []

    def asked(self, session: Session, request: say.Request) -> None:
        self.heard.append(request)

    def left(self, session: Session) -> None:
        self.gone.append(session)


class Hall:
    """A loop, a desk, and clients."""

    def __init__(self) -> None:
        self.hub = Hub()
        self.desk = Listener()
        self._sessions: list[Session] = []
        self._clients: list[Frames] = []

    def client(self) -> tuple[Session, Frames]:
        here, there = socket.socketpair()
        here.setblocking(False)
        self._sessions.append(Session(self.hub, here, self.desk))
        self._clients.append(Frames(there))
        return self._sessions[-1], self._clients[-1]

    def turn_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.hub.turn()

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        for client in self._clients:
            client.close()
        self.hub.close()


@pytest.fixture
def hall() -> Iterator[Hall]:
    made = Hall()
    yield made
    made.close()


def replies(client: Frames, most: int) -> list[say.Reply]:
    """So many replies, or fewer if the connection ends before."""
    read: list[say.Reply] = []
    while len(read) < most:
        if (data := client.take()) is not None:
            read.append(msgspec.msgpack.decode(data, type=say.Reply))
        elif not client.fill():
            break
    return read


def ask(client: Frames, request: say.Request) -> None:
    client.send(msgspec.msgpack.encode(request))


LONG = say.Waits("x" * (1 << 20))
"""More than a socket takes at once."""


def test_a_client_that_leaves_with_replies_queued_is_let_go_and_the_loop_goes_on(
    hall: Hall,
) -> None:
    leaving, client = hall.client()
    _, other = hall.client()
    leaving.reply(LONG)
    assert leaving.open
    # It has said something that nobody has read yet: now it can be read, written and is broken.
    ask(client, say.AskStatus())
    client.close()
    ask(other, say.Down())
    hall.turn_until(lambda: bool(hall.desk.gone) and say.Down() in hall.desk.heard)
    assert hall.desk.gone == [leaving]
    assert not leaving.open
    leaving.reply(say.Accepted(1))
    leaving.close()
    assert hall.desk.gone == [leaving]


def test_a_client_that_is_told_something_after_it_left_is_let_go_once(hall: Hall) -> None:
    session, client = hall.client()
    client.close()
    session.reply(say.Accepted(1))
    session.reply(say.Waits("for room"))
    assert not session.open
    assert hall.desk.gone == [session]


def test_replies_wait_for_a_client_that_is_slow_to_read_and_come_in_order(hall: Hall) -> None:
    session, client = hall.client()
    session.reply(LONG)
    session.reply(say.Accepted(1))
    client.sock.setblocking(False)
    read: list[say.Reply] = []

    def has_read_both() -> bool:
        client.fill()
        while (data := client.take()) is not None:
            read.append(msgspec.msgpack.decode(data, type=say.Reply))
        return len(read) == 2

    hall.turn_until(has_read_both)
    assert read == [LONG, say.Accepted(1)]


@pytest.mark.parametrize(
    "said",
    [
        struct.pack(">I", 4) + b"junk",
        struct.pack(">I", 0xFFFFFFFF),
        # Of another time.
        (lambda data: struct.pack(">I", len(data)) + data)(
            msgspec.msgpack.encode(say.AskStatus(protocol=PROTOCOL + 1))
        ),
    ],
)
def test_who_cannot_be_understood_is_told_so_and_let_go(hall: Hall, said: bytes) -> None:
    session, client = hall.client()
    client.sock.sendall(said)
    hall.turn_until(lambda: not session.open)
    (refusal,) = replies(client, 2)
    assert isinstance(refusal, say.Refused)
    assert hall.desk.heard == []
    assert hall.desk.gone == [session]
