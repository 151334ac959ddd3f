"""Who hears of which jobs, through real connections."""

from collections.abc import Iterator

import pytest

from sublet.broker.subscriptions import Subscriptions
from sublet.reactor import Reactor
from sublet.wire.messages import Jobs
from sublet.wire.rows import JobRow
from support.client import Client


@pytest.fixture
def clients() -> Iterator[tuple[Client, Client]]:
    reactor = Reactor()
    made = Client(reactor), Client(reactor)
    yield made
    for one in made:
        one.close()
    reactor.close()


def numbers(client: Client) -> list[list[int]]:
    """The jobs in each message since this was last asked."""
    return [[row.id for row in reply.rows] for reply in client.heard() if isinstance(reply, Jobs)]


def row(number: int) -> JobRow:
    return JobRow(number, "n", "waiting", "", 1.0, 1, f"{number}.1", "normal", "guaranteed", "auto")


def test_each_hears_of_its_own_jobs_in_one_message(clients: tuple[Client, Client]) -> None:
    one, two = clients
    subscriptions = Subscriptions()
    subscriptions.watch(one.connection, (1, 2))
    subscriptions.watch(two.connection, (2, 3))
    subscriptions.publish([1, 2, 9], row)
    assert numbers(one) == [[1, 2]]
    assert numbers(two) == [[2]]


def test_a_row_is_only_made_for_a_job_that_somebody_watches(
    clients: tuple[Client, Client],
) -> None:
    subscriptions = Subscriptions()
    subscriptions.watch(clients[0].connection, (1,))
    subscriptions.watch(clients[1].connection, (1,))
    made: list[int] = []

    def make(number: int) -> JobRow:
        made.append(number)
        return row(number)

    subscriptions.publish([1, 2, 3], make)
    assert made == [1]


def test_who_has_left_or_asked_for_others_hears_nothing_more(
    clients: tuple[Client, Client],
) -> None:
    one, two = clients
    subscriptions = Subscriptions()
    subscriptions.watch(one.connection, (1, 2))
    subscriptions.watch(two.connection, (1,))
    subscriptions.watch(one.connection, (3,))
    subscriptions.leave(two.connection)
    subscriptions.leave(two.connection)
    subscriptions.publish([1, 2, 3], row)
    assert numbers(one) == [[3]]
    two.connection.reply(Jobs(()))
    assert numbers(two) == [[]]
