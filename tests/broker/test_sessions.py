"""Clients over real sockets, and what they do to the loop when they leave."""

import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from sublet.broker import connections
from sublet.broker.connections import ClientConnection, Listener
from sublet.reactor import Reactor
from sublet.wire import PROTOCOL
from sublet.wire import messages as say
from sublet.wire.frames import Frames


class Recorder:
    """A desk that writes everything down."""

    def __init__(self) -> None:
        self.heard: list[say.Request] = []
        self.gone: list[ClientConnection] = []
        self.broken = False

    def asked(self, session: ClientConnection, request: say.Request) -> None:
        self.heard.append(request)
        if self.broken:
            raise ZeroDivisionError("a bug")

    def left(self, session: ClientConnection) -> None:
        self.gone.append(session)
        if self.broken:
            raise ZeroDivisionError("another bug")


class Hall:
    """A loop, a desk, and clients."""

    def __init__(self) -> None:
        self.hub = Reactor()
        self.desk = Recorder()
        self._sessions: list[ClientConnection] = []
        self._clients: list[Frames] = []

    def client(self) -> tuple[ClientConnection, Frames]:
        here, there = socket.socketpair()
        here.setblocking(False)
        self._sessions.append(ClientConnection(self.hub, here, self.desk))
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


def test_a_bug_in_dealing_with_one_client_ends_its_connection_and_is_told_to_both(
    hall: Hall, capfd: pytest.CaptureFixture[str]
) -> None:
    _, other = hall.client()
    session, client = hall.client()
    hall.desk.broken = True
    ask(client, say.AskStatus())
    hall.turn_until(lambda: not session.open)
    (refusal,) = replies(client, 2)
    assert isinstance(refusal, say.Refused)
    assert refusal.kind == "InternalError"
    assert "a bug" in refusal.message
    assert "Traceback" in capfd.readouterr().err
    hall.desk.broken = False
    ask(other, say.Down())
    hall.turn_until(lambda: say.Down() in hall.desk.heard)


def test_a_client_that_reads_nothing_is_let_go_before_the_replies_fill_the_memory(
    hall: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_MOST_UNSENT", 4 << 20)
    session, _ = hall.client()
    for _ in range(20):
        session.reply(LONG)
    assert not session.open


def test_when_all_places_are_taken_silent_clients_make_room_and_others_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_SESSIONS", 3)
    hub, desk, path = Reactor(), Recorder(), str(tmp_path / "broker.sock")
    door = Listener(hub, path, desk)
    clients: list[Frames] = []

    def come(asks: bool) -> Frames:
        sock = socket.socket(socket.AF_UNIX)
        directory = os.open(tmp_path, os.O_RDONLY)
        sock.connect(f"/proc/self/fd/{directory}/broker.sock")
        os.close(directory)
        clients.append(Frames(sock))
        if asks:
            ask(clients[-1], say.AskStatus())
        before = len(desk.heard)
        hub.turn()
        while asks and len(desk.heard) == before and len(clients) <= 4:
            hub.turn()
        return clients[-1]

    silent = come(asks=False)
    for _ in range(2):
        come(asks=True)
    come(asks=True)
    (told,) = replies(silent, 2)
    assert isinstance(told, say.Refused)
    (told,) = replies(come(asks=False), 2)
    assert isinstance(told, say.Refused)
    assert "as many clients as it can have" in told.message
    assert len(desk.heard) == 3
    for client in clients:
        client.close()
    while len(desk.gone) < 5:
        hub.turn()
    door.close()
    hub.close()
