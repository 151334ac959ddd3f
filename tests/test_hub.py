"""One thread's eye on many things."""

import os
import socket
from collections.abc import Callable, Iterator

import pytest

from sublet.reactor import Reactor


@pytest.fixture
def hub() -> Iterator[Reactor]:
    made = Reactor()
    yield made
    made.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def turn_until(hub: Reactor, condition: Callable[[], bool]) -> None:
    while not condition():
        hub.turn()


def test_timers_fire_in_the_order_of_their_moments_and_each_once(hub: Reactor) -> None:
    fired: list[str] = []
    hub.later(0.02, lambda: fired.append("third"))
    hub.later(0.0, lambda: fired.append("first"))
    hub.later(0.01, lambda: fired.append("second"))
    turn_until(hub, lambda: len(fired) == 3)
    hub.later(0.0, lambda: fired.append("last"))
    turn_until(hub, lambda: "last" in fired)
    assert fired == ["first", "second", "third", "last"]


def test_timers_of_the_same_moment_fire_in_the_order_they_were_set(
    hub: Reactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    fired: list[int] = []
    for number in range(5):
        hub.later(0.0, lambda number=number: fired.append(number))  # type: ignore[misc]
    hub.turn()
    assert fired == [0, 1, 2, 3, 4]


def test_a_timer_can_set_the_next_one(hub: Reactor) -> None:
    fired: list[int] = []

    def again() -> None:
        fired.append(len(fired))
        if len(fired) < 3:
            hub.later(0.0, again)

    hub.later(0.0, again)
    turn_until(hub, lambda: len(fired) == 3)


def test_a_source_is_called_for_as_long_as_it_can_be_read(
    hub: Reactor, pipe: tuple[int, int]
) -> None:
    reading, writing = pipe
    heard: list[bytes] = []
    hub.watch(reading, lambda: heard.append(os.read(reading, 1)))
    os.write(writing, b"ab")
    turn_until(hub, lambda: heard == [b"a", b"b"])


def test_a_source_that_is_not_watched_any_more_is_not_called(
    hub: Reactor, pipe: tuple[int, int]
) -> None:
    reading, writing = pipe
    heard: list[str] = []
    hub.watch(reading, lambda: heard.append("unwatched"))
    os.write(writing, b"a")
    hub.unwatch(reading)
    hub.later(0.001, lambda: heard.append("timer"))
    turn_until(hub, lambda: bool(heard))
    assert heard == ["timer"]


def test_a_source_that_was_unwatched_earlier_in_the_turn_is_not_called(hub: Reactor) -> None:
    one, other = os.pipe(), os.pipe()
    called: list[int] = []

    def stop_both(mine: int) -> None:
        called.append(mine)
        for reading, _ in (one, other):
            hub.unwatch(reading)

    for reading, writing in (one, other):
        hub.watch(reading, lambda mine=reading: stop_both(mine))  # type: ignore[misc]
        os.write(writing, b"a")
    hub.turn()
    # Both could be read; whichever came first has given up the other.
    assert len(called) == 1
    for number in (*one, *other):
        os.close(number)


def test_a_source_that_gives_up_while_it_writes_is_not_read_in_the_same_turn(hub: Reactor) -> None:
    one, other = socket.socketpair()
    happened: list[str] = []

    def give_up() -> None:
        happened.append("write")
        hub.unwatch(one)
        one.close()

    with one, other:
        hub.watch(one, lambda: happened.append("read"))
        hub.when_writable(one, give_up)
        other.send(b"read me")
        hub.turn()
    assert happened == ["write"]


def test_unwatching_what_is_not_watched_is_no_error(hub: Reactor, pipe: tuple[int, int]) -> None:
    hub.unwatch(pipe[0])
    closed = socket.socket()
    closed.close()
    hub.unwatch(closed)


def test_a_source_can_unwatch_itself_and_be_watched_again(
    hub: Reactor, pipe: tuple[int, int]
) -> None:
    reading, writing = pipe
    heard: list[str] = []

    def once() -> None:
        heard.append("once")
        hub.unwatch(reading)

    hub.watch(reading, once)
    os.write(writing, b"a")
    turn_until(hub, lambda: heard == ["once"])
    hub.watch(reading, lambda: heard.append("again"))
    turn_until(hub, lambda: heard == ["once", "again"])


def test_a_busy_source_does_not_keep_a_timer_from_firing(
    hub: Reactor, pipe: tuple[int, int]
) -> None:
    reading, writing = pipe
    fired: list[str] = []
    hub.watch(reading, lambda: None)
    os.write(writing, b"never read")
    hub.later(0.001, lambda: fired.append("timer"))
    turn_until(hub, lambda: bool(fired))


def test_a_source_that_waits_to_write_is_still_heard_and_is_called_no_more_once_it_is_done(
    hub: Reactor,
) -> None:
    one, other = socket.socketpair()
    happened: list[str] = []

    def write() -> None:
        happened.append("write")
        hub.when_writable(one, None)

    def read() -> None:
        happened.append(one.recv(10).decode())

    with one, other:
        hub.watch(one, read)
        hub.when_writable(one, write)
        turn_until(hub, lambda: "write" in happened)
        other.send(b"read")
        turn_until(hub, lambda: "read" in happened)
        hub.unwatch(one)
    assert happened == ["write", "read"]
