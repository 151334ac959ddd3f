"""What the client of a job hears of it."""

from collections.abc import Callable, Iterator

import pytest

from sublet.broker.job_clients import JobClients
from sublet.reactor import Reactor
from sublet.wire import messages as say
from support.client import Client

FULL = say.Waits("the device is full")


Connect = Callable[[], Client]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """A client more."""
    hub = Reactor()
    made: list[Client] = []

    def one() -> Client:
        made.append(Client(hub))
        return made[-1]

    yield one
    for client in made:
        client.close()
    hub.close()


def test_a_reason_is_told_once_until_something_else_was_said(connect: Connect) -> None:
    """A job whose attempt never ran waits again, perhaps for the same reason."""
    clients, client = JobClients(), connect()
    clients.join(1, client.session, [])
    started = say.Started(7, "warm")
    clients.tell_news(1, FULL)
    clients.tell_news(1, FULL)
    clients.tell(1, started)
    clients.tell_news(1, FULL)
    assert client.heard() == [FULL, started, FULL]


def test_a_client_that_comes_back_hears_the_reason_again(connect: Connect) -> None:
    clients, first, second = JobClients(), connect(), connect()
    clients.join(1, first.session, [])
    clients.tell_news(1, FULL)
    clients.join(1, second.session, [])
    clients.tell_news(1, FULL)
    assert (first.heard(), second.heard()) == ([FULL], [FULL])
