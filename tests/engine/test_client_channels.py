"""The engine's half of one connection."""

import socket

from sublet.channel.tensors import Array
from sublet.engine.answers import Answers
from sublet.engine.client_channels import Client, Route
from sublet.engine.requests import BatchKind, Request
from support.numpy_engine import floats

GiB = 1 << 30


def client() -> Client:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    return Client(mine)


def test_a_client_can_be_owed_large_answers_up_to_a_bound() -> None:
    one = client()
    assert one.owes(1, GiB // 2)
    assert one.owes(2, GiB // 2)
    assert not one.owes(3, 1)
    one.has_taken(1)
    assert one.owes(3, 1)
    for call in (2, 3, 99):
        one.has_taken(call)
    # The first one may be of any size: else it could never be had.
    assert one.owes(4, 2 * GiB)
    assert not one.owes(5, 1)
    one.close()


def test_answers_of_different_types_and_one_shape_are_told_apart() -> None:
    one = client()
    answer = {"model": "m", "version": 1, "signature": "s", "inputs": ["x"]}
    routes = [Route(n, {**answer, "outputs": [name]}) for n, name in enumerate("ab")]
    outputs: list[Array] = [floats([[1]]), floats([[1]]).astype("f8")]
    answers = Answers(("a", "b"))
    for number, route in enumerate(routes):
        request = Request(BatchKind("s"), 1, 0.0, client=one, call=number, route=route)
        answers.put(request, outputs, 0.0, 1)
    (records,) = answers._clients.values()
    small, large = (record.size for record in records)
    assert large == small  # One float of 4 bytes is filled up to 8.
    assert records[0].pieces[1] != records[1].pieces[1]
    one.close()
