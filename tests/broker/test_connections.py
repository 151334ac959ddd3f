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
from sublet.wire import PROTOCOL, messages
from sublet.wire.frames import Frames


class Recorder:
    """A desk that writes everything down."""

    def __init__(self) -> None:
        self.heard: list[messages.Request] = []
        self.gone: list[ClientConnection] = []
        self.broken = False

    def handle(self, connection: ClientConnection, request: messages.Request) -> None:
        self.heard.append(request)
        if self.broken:
            raise ZeroDivisionError("a bug")

    def disconnected(self, connection: ClientConnection) -> None:
        self.gone.append(connection)
        if self.broken:
            raise ZeroDivisionError("another bug")


class Harness:
    """A loop, a desk, and clients."""

    def __init__(self) -> None:
        self.reactor = Reactor()
        self.handler = Recorder()
        self._connections: list[ClientConnection] = []
        self._clients: list[Frames] = []

    def client(self) -> tuple[ClientConnection, Frames]:
        here, there = socket.socketpair()
        here.setblocking(False)
        self._connections.append(ClientConnection(self.reactor, here, self.handler))
        self._clients.append(Frames(there))
        return self._connections[-1], self._clients[-1]

    def turn_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.reactor.run_once()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        for client in self._clients:
            client.close()
        self.reactor.close()


@pytest.fixture
def harness() -> Iterator[Harness]:
    made = Harness()
    yield made
    made.close()


def replies(client: Frames, most: int) -> list[messages.Reply]:
    """So many replies, or fewer if the connection ends before."""
    read: list[messages.Reply] = []
    while len(read) < most:
        if (data := client.take()) is not None:
            read.append(msgspec.msgpack.decode(data, type=messages.Reply))
        elif not client.fill():
            break
    return read


def ask(client: Frames, request: messages.Request) -> None:
    client.send(msgspec.msgpack.encode(request))


LONG = messages.Waits("x" * (1 << 20))
"""More than a socket takes at once."""


def test_a_client_that_leaves_with_replies_queued_is_let_go_and_the_loop_goes_on(
    harness: Harness,
) -> None:
    leaving, client = harness.client()
    _, other = harness.client()
    leaving.reply(LONG)
    assert leaving.open
    # It has said something that nobody has read yet: now it can be read, written and is broken.
    ask(client, messages.AskStatus())
    client.close()
    ask(other, messages.Down())
    harness.turn_until(
        lambda: bool(harness.handler.gone) and messages.Down() in harness.handler.heard
    )
    assert harness.handler.gone == [leaving]
    assert not leaving.open
    leaving.reply(messages.Accepted(1))
    leaving.close()
    assert harness.handler.gone == [leaving]


def test_a_client_that_is_told_something_after_it_left_is_let_go_once(harness: Harness) -> None:
    connection, client = harness.client()
    client.close()
    connection.reply(messages.Accepted(1))
    connection.reply(messages.Waits("for room"))
    assert not connection.open
    assert harness.handler.gone == [connection]


def test_replies_wait_for_a_client_that_is_slow_to_read_and_come_in_order(harness: Harness) -> None:
    connection, client = harness.client()
    connection.reply(LONG)
    connection.reply(messages.Accepted(1))
    client.sock.setblocking(False)
    read: list[messages.Reply] = []

    def has_read_both() -> bool:
        client.fill()
        while (data := client.take()) is not None:
            read.append(msgspec.msgpack.decode(data, type=messages.Reply))
        return len(read) == 2

    harness.turn_until(has_read_both)
    assert read == [LONG, messages.Accepted(1)]


@pytest.mark.parametrize(
    "said",
    [
        struct.pack(">I", 4) + b"junk",
        struct.pack(">I", 0xFFFFFFFF),
        # Of another time.
        (lambda data: struct.pack(">I", len(data)) + data)(
            msgspec.msgpack.encode(messages.AskStatus(protocol=PROTOCOL + 1))
        ),
    ],
)
def test_who_cannot_be_understood_is_told_so_and_let_go(harness: Harness, said: bytes) -> None:
    connection, client = harness.client()
    client.sock.sendall(said)
    harness.turn_until(lambda: not connection.open)
    (refusal,) = replies(client, 2)
    assert isinstance(refusal, messages.Refused)
    assert harness.handler.heard == []
    assert harness.handler.gone == [connection]


def test_a_command_of_another_version_can_end_the_broker(harness: Harness) -> None:
    """After an upgrade, who else should end the old one?"""
    _, client = harness.client()
    down = messages.Down(protocol=PROTOCOL + 1)
    ask(client, down)
    harness.turn_until(lambda: harness.handler.heard == [down])


def test_a_bug_in_dealing_with_one_client_ends_its_connection_and_is_told_to_both(
    harness: Harness, capfd: pytest.CaptureFixture[str]
) -> None:
    _, other = harness.client()
    connection, client = harness.client()
    harness.handler.broken = True
    ask(client, messages.AskStatus())
    harness.turn_until(lambda: not connection.open)
    (refusal,) = replies(client, 2)
    assert isinstance(refusal, messages.Refused)
    assert refusal.kind == "InternalError"
    assert "a bug" in refusal.message
    assert "Traceback" in capfd.readouterr().err
    harness.handler.broken = False
    ask(other, messages.Down())
    harness.turn_until(lambda: messages.Down() in harness.handler.heard)


def test_a_client_that_reads_nothing_is_let_go_before_the_replies_fill_the_memory(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_MOST_UNSENT", 4 << 20)
    connection, _ = harness.client()
    for _ in range(20):
        connection.reply(LONG)
    assert not connection.open


def test_when_all_places_are_taken_silent_clients_make_room_and_others_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    reactor, handler, path = Reactor(), Recorder(), str(tmp_path / "broker.sock")
    listener = Listener(reactor, path, handler)
    clients: list[Frames] = []

    def come(asks: bool) -> Frames:
        sock = socket.socket(socket.AF_UNIX)
        directory = os.open(tmp_path, os.O_RDONLY)
        sock.connect(f"/proc/self/fd/{directory}/broker.sock")
        os.close(directory)
        clients.append(Frames(sock))
        if asks:
            ask(clients[-1], messages.AskStatus())
        before = len(handler.heard)
        reactor.run_once()
        while asks and len(handler.heard) == before and len(clients) <= 4:
            reactor.run_once()
        return clients[-1]

    silent = come(asks=False)
    for _ in range(2):
        come(asks=True)
    come(asks=True)
    (reply,) = replies(silent, 2)
    assert isinstance(reply, messages.Refused)
    (reply,) = replies(come(asks=False), 2)
    assert isinstance(reply, messages.Refused)
    assert "as many clients as it can have" in reply.message
    assert len(handler.heard) == 3
    for client in clients:
        client.close()
    while len(handler.gone) < 5:
        reactor.run_once()
    listener.close()
    reactor.close()
