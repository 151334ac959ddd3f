"""Bodies become messages, in whatever pieces they come and wherever they are put."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.errors import ServingError
from sublet.serving.frontend.grpc.calls import Data
from sublet.serving.frontend.grpc.incoming import LARGE, Incoming

SIZES = st.sampled_from([0, 1, 1000, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE])


def _message(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def _body(*messages: bytes) -> bytes:
    return b"".join(b"\0" + len(one).to_bytes(4, "big") + one for one in messages)


@pytest.mark.slow
@given(st.lists(SIZES, max_size=4), st.data())
@settings(deadline=None)
def test_messages_are_the_same_in_any_pieces(sizes: list[int], draw: st.DataObject) -> None:
    messages = [_message(size) for size in sizes]
    body = _body(*messages)
    incoming = Incoming(b"identity", 2**31, None)
    read: list[Data] = []
    at = 0
    while at < len(body):
        size = draw.draw(st.sampled_from([1, 5, 6, 1024, 16384, 100_000]))
        piece = body[at : at + size]
        place = incoming.place()
        if place is not None and draw.draw(st.booleans()):
            piece = piece[: len(place)]
            place[: len(piece)] = piece
            incoming.came(len(piece))
        else:
            incoming.take(memoryview(bytearray(piece)) if draw.draw(st.booleans()) else piece)
        at += len(piece)
        assert 0 <= at - incoming.held - sum(map(len, read)) <= 5 * len(sizes)
        while incoming.messages:
            read.append(incoming.messages.popleft())
    assert not incoming.cut_off
    assert [bytes(one) for one in read] == messages


def test_what_was_a_view_is_copied() -> None:
    for size in (10, LARGE):
        incoming = Incoming(b"identity", 2**31, None)
        came = bytearray(_body(_message(size)))
        incoming.take(memoryview(came)[:-1])
        incoming.take(memoryview(came)[-1:])
        came[:] = bytes(len(came))
        assert incoming.messages[0] == _message(size)


def test_a_large_message_lies_where_its_beginning_says() -> None:
    memory = bytearray(2 * LARGE)
    asked: list[tuple[int, bytes]] = []

    def give(size: int, beginning: Data) -> memoryview:
        asked.append((size, bytes(beginning)))
        return memoryview(memory)[7 : 7 + size]

    message = _message(LARGE)
    body = _body(message)
    incoming = Incoming(b"identity", 2**31, give)
    incoming.take(body[:1000])
    assert not asked
    incoming.take(body[1000:2000])
    assert asked == [(LARGE, message[:1995])]
    incoming.take(body[2000:])
    assert memory[7 : 7 + LARGE] == message
    assert len(asked) == 1


def test_a_size_beyond_the_limit_is_refused_before_memory_is_asked_for() -> None:
    incoming = Incoming(b"identity", LARGE, None)
    with pytest.raises(ServingError, match=f"larger than max \\({LARGE + 1} vs. {LARGE}\\)"):
        incoming.take(b"\0" + (LARGE + 1).to_bytes(4, "big"))
