"""One thread's eye on many things."""

import os
import socket
from collections.abc import Callable, Iterator

import pytest

from sublet.hub import Hub


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub()
    yield made
    made.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def turn_until(hub: Hub, condition: Callable[[], bool]) -> None:
    while not condition():
        hub.turn()


def test_timers_fire_in_the_order_of_their_moments_and_each_once(hub: Hub) -> None:
    fired: list[str] = []
    hub.later(0.02, lambda: fired.append("third"))
    hub.later(0.0, lambda: fired.append("first"))
    hub.later(0.01, lambda: fired.append("second"))
    turn_until(hub, lambda: len(fired) == 3)
    hub.later(0.0, lambda: fired.append("last"))
    turn_until(hub, lambda: "last" in fired)
    assert fired == ["first", "second", "third", "last"]


def test_timers_of_the_same_moment_fire_in_the_order_they_were_set(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    fired: list[int] = []
    for number in range(5):
        hub.later(0.0, lambda number=number: fired.append(number))  # type: ignore[misc]
    hub.turn()
    assert fired == [0, 1, 2, 3, 4]


def test_a_cancelled_timer_does_not_fire(hub: Hub) -> None:
    fired: list[str] = []
    cancelled = hub.later(0.0, lambda: fired.append("cancelled"))
    hub.later(0.001, lambda: fired.append("kept"))
    hub.cancel(cancelled)
    turn_until(hub, lambda: bool(fired))
    assert fired == ["kept"]


def test_a_timer_can_cancel_another_that_is_due(hub: Hub) -> None:
    fired: list[str] = []
    numbers: list[int] = []
    hub.later(0.0, lambda: hub.cancel(numbers[0]))
    numbers.append(hub.later(0.0, lambda: fired.append("cancelled")))
    hub.later(0.001, lambda: fired.append("kept"))
    turn_until(hub, lambda: bool(fired))
    assert fired == ["kept"]


def test_cancelling_a_timer_that_has_fired_does_not_stop_later_ones(hub: Hub) -> None:
    fired: list[int] = []
    first = hub.later(0.0, lambda: fired.append(1))
    turn_until(hub, lambda: fired == [1])
    hub.cancel(first)
    hub.later(0.0, lambda: fired.append(2))
    turn_until(hub, lambda: fired == [1, 2])


def test_a_timer_can_set_the_next_one(hub: Hub) -> None:
    fired: list[int] = []

    def again() -> None:
        fired.append(len(fired))
        if len(fired) < 3:
            hub.later(0.0, again)

    hub.later(0.0, again)
    turn_until(hub, lambda: len(fired) == 3)


def test_a_source_is_called_for_as_long_as_it_can_be_read(hub: Hub, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    heard: list[bytes] = []
    hub.watch(reading, lambda: heard.append(os.read(reading, 1)))
    os.write(writing, b"ab")
    turn_until(hub, lambda: heard == [b"a", b"b"])


def test_a_source_that_is_not_watched_any_more_is_not_called(
    hub: Hub, pipe: tuple[int, int]
) -> None:
    reading, writing = pipe
    heard: list[str] = []
    hub.watch(reading, lambda: heard.append("unwatched"))
    os.write(writing, b"a")
    hub.unwatch(reading)
    hub.later(0.001, lambda: heard.append("timer"))
    turn_until(hub, lambda: bool(heard))
    assert heard == ["timer"]


def test_unwatching_what_is_not_watched_is_no_error(hub: Hub, pipe: tuple[int, int]) -> None:
    hub.unwatch(pipe[0])
    closed = socket.socket()
    closed.close()
    hub.unwatch(closed)


def test_a_source_can_unwatch_itself_and_be_watched_again(hub: Hub, pipe: tuple[int, int]) -> None:
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


def test_a_busy_source_does_not_keep_a_timer_from_firing(hub: Hub, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    fired: list[str] = []
    hub.watch(reading, lambda: None)
    os.write(writing, b"never read")
    hub.later(0.001, lambda: fired.append("timer"))
    turn_until(hub, lambda: bool(fired))


def test_a_source_that_waits_to_write_is_still_heard_and_is_called_no_more_once_it_is_done(
    hub: Hub,
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
