"""Who hears of which jobs, through real connections."""

import socket
from collections.abc import Iterator

import pytest

from sublet.broker.sessions import Session
from sublet.broker.watchers import Watchers
from sublet.hub import Hub
from sublet.wire.frames import Frames
from sublet.wire.messages import JobRow, Jobs, Request, decode_reply


class Client:
    """One end of a connection; the broker has the other one."""

    def __init__(self, hub: Hub) -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self.session = Session(hub, theirs, self)
        self.frames = Frames(ours)
        ours.setblocking(False)

    def asked(self, session: Session, request: Request) -> None:
        raise AssertionError("nobody asks here")

    def left(self, session: Session) -> None:
        pass

    def heard(self) -> list[list[int]]:
        """The numbers of the jobs in each message since this was last asked."""
        self.frames.fill()
        messages = []
        while (data := self.frames.take()) is not None:
            reply = decode_reply(data)
            assert isinstance(reply, Jobs)
            messages.append([row.id for row in reply.rows])
        return messages

    def close(self) -> None:
        self.session.close()
        self.frames.close()


@pytest.fixture
def clients() -> Iterator[tuple[Client, Client]]:
    hub = Hub()
    made = Client(hub), Client(hub)
    yield made
    for one in made:
        one.close()
    hub.close()


def row(number: int) -> JobRow:
    return JobRow(number, "n", "waiting", "", 1.0, 1, f"{number}.1", "normal", "guaranteed", "auto")


def test_each_hears_of_its_own_jobs_in_one_message(clients: tuple[Client, Client]) -> None:
    one, two = clients
    watchers = Watchers()
    watchers.watch(one.session, (1, 2))
    watchers.watch(two.session, (2, 3))
    watchers.tell([1, 2, 9], row)
    assert one.heard() == [[1, 2]]
    assert two.heard() == [[2]]


def test_a_row_is_only_made_for_a_job_that_somebody_watches(
    clients: tuple[Client, Client],
) -> None:
    watchers = Watchers()
    watchers.watch(clients[0].session, (1,))
    watchers.watch(clients[1].session, (1,))
    made: list[int] = []

    def make(number: int) -> JobRow:
        made.append(number)
        return row(number)

    watchers.tell([1, 2, 3], make)
    assert made == [1]


def test_who_has_left_or_asked_for_others_hears_nothing_more(
    clients: tuple[Client, Client],
) -> None:
    one, two = clients
    watchers = Watchers()
    watchers.watch(one.session, (1, 2))
    watchers.watch(two.session, (1,))
    watchers.watch(one.session, (3,))
    watchers.leave(two.session)
    watchers.leave(two.session)
    watchers.tell([1, 2, 3], row)
    assert one.heard() == [[3]]
    two.session.reply(Jobs(()))
    assert two.heard() == [[]]
