"""What the client of a job hears of it."""

from collections.abc import Callable, Iterator

import pytest

from sublet.broker.job_clients import JobClients
from sublet.reactor import Reactor
from sublet.wire import messages
from support.client import Client

FULL = messages.Waits("the device is full")


Connect = Callable[[], Client]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """A client more."""
    reactor = Reactor()
    made: list[Client] = []

    def one() -> Client:
        made.append(Client(reactor))
        return made[-1]

    yield one
    for client in made:
        client.close()
    reactor.close()


def test_a_reason_is_told_once_until_something_else_was_said(connect: Connect) -> None:
    """A job whose attempt never ran waits again, perhaps for the same reason."""
    clients, client = JobClients(), connect()
    clients.join(1, client.connection, [])
    started = messages.Started(7, "warm")
    clients.send_if_new(1, FULL)
    clients.send_if_new(1, FULL)
    clients.send(1, started)
    clients.send_if_new(1, FULL)
    assert client.heard() == [FULL, started, FULL]


def test_a_client_that_comes_back_hears_the_reason_again(connect: Connect) -> None:
    clients, first, second = JobClients(), connect(), connect()
    clients.join(1, first.connection, [])
    clients.send_if_new(1, FULL)
    clients.join(1, second.connection, [])
    clients.send_if_new(1, FULL)
    assert (first.heard(), second.heard()) == ([FULL], [FULL])
