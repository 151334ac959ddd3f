"""One thread's eye on many things."""

import os
import socket
from collections.abc import Callable, Iterator

import pytest

from sublet.reactor import Reactor


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    made = Reactor()
    yield made
    made.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def turn_until(reactor: Reactor, condition: Callable[[], bool]) -> None:
    while not condition():
        reactor.run_once()


def test_timers_fire_in_the_order_of_their_moments_and_each_once(reactor: Reactor) -> None:
    fired: list[str] = []
    reactor.call_later(0.02, lambda: fired.append("third"))
    reactor.call_later(0.0, lambda: fired.append("first"))
    reactor.call_later(0.01, lambda: fired.append("second"))
    turn_until(reactor, lambda: len(fired) == 3)
    reactor.call_later(0.0, lambda: fired.append("last"))
    turn_until(reactor, lambda: "last" in fired)
    assert fired == ["first", "second", "third", "last"]


def test_timers_of_the_same_moment_fire_in_the_order_they_were_set(
    reactor: Reactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    fired: list[int] = []
    for number in range(5):
        reactor.call_later(0.0, lambda number=number: fired.append(number))  # type: ignore[misc]
    reactor.run_once()
    assert fired == [0, 1, 2, 3, 4]


def test_a_timer_can_set_the_next_one(reactor: Reactor) -> None:
    fired: list[int] = []

    def again() -> None:
        fired.append(len(fired))
        if len(fired) < 3:
            reactor.call_later(0.0, again)

    reactor.call_later(0.0, again)
    turn_until(reactor, lambda: len(fired) == 3)


def test_a_source_is_called_for_as_long_as_it_can_be_read(
    reactor: Reactor, pipe: tuple[int, int]
) -> None:
    reading, writing = pipe
    heard: list[bytes] = []
    reactor.watch(reading, lambda: heard.append(os.read(reading, 1)))
    os.write(writing, b"ab")
    turn_until(reactor, lambda: heard == [b"a", b"b"])


def test_a_source_that_is_not_watched_any_more_is_not_called(
    reactor: Reactor, pipe: tuple[int, int]
) -> None:
    reading, writing = pipe
    heard: list[str] = []
    reactor.watch(reading, lambda: heard.append("unwatched"))
    os.write(writing, b"a")
    reactor.unwatch(reading)
    reactor.call_later(0.001, lambda: heard.append("timer"))
    turn_until(reactor, lambda: bool(heard))
    assert heard == ["timer"]


def test_a_source_that_was_unwatched_earlier_in_the_turn_is_not_called(reactor: Reactor) -> None:
    one, other = os.pipe(), os.pipe()
    called: list[int] = []

    def stop_both(mine: int) -> None:
        called.append(mine)
        for reading, _ in (one, other):
            reactor.unwatch(reading)

    for reading, writing in (one, other):
        reactor.watch(reading, lambda mine=reading: stop_both(mine))  # type: ignore[misc]
        os.write(writing, b"a")
    reactor.run_once()
    # Both could be read; whichever came first has given up the other.
    assert len(called) == 1
    for number in (*one, *other):
        os.close(number)


def test_a_source_that_gives_up_while_it_writes_is_not_read_in_the_same_turn(
    reactor: Reactor,
) -> None:
    one, other = socket.socketpair()
    happened: list[str] = []

    def give_up() -> None:
        happened.append("write")
        reactor.unwatch(one)
        one.close()

    with one, other:
        reactor.watch(one, lambda: happened.append("read"))
        reactor.when_writable(one, give_up)
        other.send(b"read me")
        reactor.run_once()
    assert happened == ["write"]


def test_unwatching_what_is_not_watched_is_no_error(
    reactor: Reactor, pipe: tuple[int, int]
) -> None:
    reactor.unwatch(pipe[0])
    closed = socket.socket()
    closed.close()
    reactor.unwatch(closed)


def test_a_source_can_unwatch_itself_and_be_watched_again(
    reactor: Reactor, pipe: tuple[int, int]
) -> None:
    reading, writing = pipe
    heard: list[str] = []

    def once() -> None:
        heard.append("once")
        reactor.unwatch(reading)

    reactor.watch(reading, once)
    os.write(writing, b"a")
    turn_until(reactor, lambda: heard == ["once"])
    reactor.watch(reading, lambda: heard.append("again"))
    turn_until(reactor, lambda: heard == ["once", "again"])


def test_a_busy_source_does_not_keep_a_timer_from_firing(
    reactor: Reactor, pipe: tuple[int, int]
) -> None:
    reading, writing = pipe
    fired: list[str] = []
    reactor.watch(reading, lambda: None)
    os.write(writing, b"never read")
    reactor.call_later(0.001, lambda: fired.append("timer"))
    turn_until(reactor, lambda: bool(fired))


def test_a_source_that_waits_to_write_is_still_heard_and_is_called_no_more_once_it_is_done(
    reactor: Reactor,
) -> None:
    one, other = socket.socketpair()
    happened: list[str] = []

    def write() -> None:
        happened.append("write")
        reactor.when_writable(one, None)

    def read() -> None:
        happened.append(one.recv(10).decode())

    with one, other:
        reactor.watch(one, read)
        reactor.when_writable(one, write)
        turn_until(reactor, lambda: "write" in happened)
        other.send(b"read")
        turn_until(reactor, lambda: "read" in happened)
        reactor.unwatch(one)
    assert happened == ["write", "read"]
