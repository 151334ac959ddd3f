"""Messages over a real socket."""

import fcntl
import os
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.errors import BadRequest
from sublet.wire.frames import LARGEST, Frames

# Mostly small, sometimes more than a socket's buffer or one read takes.
_messages = st.lists(
    st.binary(max_size=50) | st.integers(0, 400_000).map(lambda n: bytes([n % 251]) * n),
    max_size=6,
)


@pytest.fixture
def pair() -> Iterator[tuple[Frames, Frames]]:
    one, other = socket.socketpair()
    frames = Frames(one), Frames(other)
    yield frames
    for end in frames:
        end.close()


def taken(frames: Frames) -> list[bytes]:
    """All whole messages that have been read."""
    messages = []
    while (message := frames.take()) is not None:
        messages.append(message)
    return messages


def opens_the_same(one: int, other: int) -> bool:
    return os.path.sameopenfile(one, other)


def is_open(number: int) -> bool:
    try:
        fcntl.fcntl(number, fcntl.F_GETFD)
    except OSError:
        return False
    return True


@settings(max_examples=50)
@given(_messages, st.data())
def test_messages_split_anywhere_arrive_whole_and_in_order(
    messages: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(struct.pack(">I", len(message)) + message for message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    raw, other = socket.socketpair()
    frames = Frames(other)
    arrived: list[bytes] = []
    with raw:
        other.setblocking(False)
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            part = memoryview(stream)[start:end]
            while part:
                part = part[raw.send(part[: 1 << 16]) :]
                assert frames.fill()
                arrived += taken(frames)
    while frames.fill():
        arrived += taken(frames)
    assert arrived + taken(frames) == messages
    frames.close()


@settings(max_examples=25)
@given(_messages)
def test_what_is_queued_leaves_as_the_other_end_reads_and_nothing_is_lost(
    messages: list[bytes],
) -> None:
    one, other = socket.socketpair()
    one.setblocking(False)
    sender, receiver = Frames(one), Frames(other)
    for message in messages:
        sender.put(message)
    arrived: list[bytes] = []
    while not sender.flush():
        assert receiver.fill()
        arrived += taken(receiver)
    sender.close()
    while receiver.fill():
        arrived += taken(receiver)
    assert arrived + taken(receiver) == messages
    receiver.close()


def test_half_a_message_is_no_message(pair: tuple[Frames, Frames]) -> None:
    sender, receiver = pair
    sender.sock.sendall(b"\0\0")
    assert receiver.fill()
    assert receiver.take() is None
    sender.sock.sendall(b"\0\x03ab")
    assert receiver.fill()
    assert receiver.take() is None
    sender.sock.sendall(b"c")
    assert receiver.fill()
    assert receiver.take() == b"abc"
    assert receiver.take() is None


def test_nothing_to_read_is_not_the_end(pair: tuple[Frames, Frames]) -> None:
    sender, receiver = pair
    receiver.sock.setblocking(False)
    assert receiver.fill()
    sender.close()
    assert not receiver.fill()


def test_an_end_that_was_broken_off_reads_as_the_end(pair: tuple[Frames, Frames]) -> None:
    sender, receiver = pair
    receiver.send(b"never read")
    sender.close()
    assert not receiver.fill()


def test_sending_to_nobody_is_an_error(pair: tuple[Frames, Frames]) -> None:
    sender, receiver = pair
    receiver.close()
    sender.put(b"hello")
    with pytest.raises(OSError, match="Broken pipe"):
        sender.flush()


def test_descriptors_arrive_with_their_message_and_are_closed_in_programs_started_later(
    pair: tuple[Frames, Frames],
) -> None:
    sender, receiver = pair
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    sender.send(b"three streams", [reading, writing, writing])
    assert receiver.fill()
    assert receiver.take() == b"three streams"
    assert len(receiver.descriptors) == 3
    for mine, theirs in zip((reading, writing, writing), receiver.descriptors, strict=True):
        assert theirs != mine
        assert opens_the_same(mine, theirs)
        assert not os.get_inheritable(theirs)
    for number in (reading, writing):
        os.close(number)


def test_descriptors_come_along_once_however_long_the_message_is(
    pair: tuple[Frames, Frames],
) -> None:
    sender, receiver = pair
    reading, writing = os.pipe()
    message = bytes(100_000)
    sender.send(message, [reading])
    arrived: list[bytes] = []
    while not arrived:
        assert receiver.fill()
        arrived = taken(receiver)
    assert arrived == [message]
    assert len(receiver.descriptors) == 1
    for number in (reading, writing):
        os.close(number)


def test_closing_closes_the_descriptors_that_nobody_took(pair: tuple[Frames, Frames]) -> None:
    sender, receiver = pair
    reading, writing = os.pipe()
    sender.send(b"streams", [reading, writing])
    assert receiver.fill()
    untaken, taken_ = receiver.descriptors
    receiver.descriptors.remove(taken_)
    receiver.close()
    assert not is_open(untaken)
    assert is_open(taken_)
    receiver.close()
    for number in (reading, writing, taken_):
        os.close(number)


def test_a_length_that_is_too_large_is_refused_before_its_bytes_come(
    pair: tuple[Frames, Frames],
) -> None:
    sender, receiver = pair
    sender.sock.sendall(struct.pack(">I", LARGEST + 1))
    assert receiver.fill()
    with pytest.raises(BadRequest, match=str(LARGEST + 1)):
        receiver.take()


def test_the_largest_length_is_not_refused(pair: tuple[Frames, Frames]) -> None:
    sender, receiver = pair
    sender.sock.sendall(struct.pack(">I", LARGEST))
    assert receiver.fill()
    assert receiver.take() is None
