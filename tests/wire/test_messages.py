"""What crosses the socket is what was said."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.wire import messages as messages
from support.jobs import amounts, leases, numbers, outcomes, specs, texts

_tokens = st.text("0123456789abcdef-", min_size=1, max_size=40)
_requests: st.SearchStrategy[messages.Request] = st.one_of(
    st.builds(messages.Run, specs, _tokens),
    st.builds(messages.Attach, numbers, _tokens),
    st.builds(messages.Signal, st.integers(1, 64)),
    st.builds(messages.AskStatus),
    st.builds(messages.Down, st.booleans()),
)
_replies: st.SearchStrategy[messages.Reply] = st.one_of(
    st.builds(messages.Accepted, numbers),
    st.builds(messages.Waits, texts),
    st.builds(messages.Granted, leases, st.integers(1, 50)),
    st.builds(messages.Started, amounts, texts),
    st.builds(
        messages.Ended,
        job=numbers,
        outcome=outcomes,
        lease=st.none() | leases,
        how=texts,
        attempt=st.integers(1, 50),
        suggest=st.none() | amounts,
    ),
    st.builds(messages.Retried, outcomes, st.none() | leases, amounts),
    st.builds(messages.Refused, texts, texts, texts),
)
few = settings(max_examples=40)


@few
@given(_requests)
def test_a_request_is_read_as_it_was_sent(asked: messages.Request) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(asked), type=messages.Request) == asked


@few
@given(_replies)
def test_a_reply_is_read_as_it_was_sent(reply: messages.Reply) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(reply), type=messages.Reply) == reply


@given(st.binary(max_size=200))
def test_bytes_that_are_no_request_are_refused_and_nothing_else_happens(junk: bytes) -> None:
    try:
        request = messages.decode_request(junk)
    except msgspec.MsgspecError:
        return
    assert isinstance(request, messages.Request)


@pytest.mark.parametrize(
    "junk",
    [
        b"\x81\xa4type\xa3\xffun",
        b"\x81\xa5\xff\xff\xff\xff\xff\x01",
        b"\x82\xa4type\xa6status\xa1x" + b"\x91" * 100_000 + b"\xc0",
        b"\x82\xa4type\xa6signal\xa6number\xcf\0\0\1\0\0\0\0\0",
        b"\x82\xa4type\xa7explain\xa3job\xcf" + b"\xff" * 8,
    ],
    ids=["text", "name", "depth", "signal", "number"],
)
def test_what_no_client_of_ours_sends_is_refused_in_the_same_way(junk: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        messages.decode_request(junk)


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "run", "spec": {}, "token": "x"},
        {"type": "attach", "job": "1", "token": "x"},
        {"type": "signal", "number": "SIGKILL"},
        {"type": "reboot"},
        {"job": 1},
    ],
)
def test_a_message_of_the_wrong_shape_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(wrong), type=messages.Request)


def test_a_field_that_a_later_sublet_adds_is_overlooked() -> None:
    later = {"type": "down", "stop": True, "gently": True}
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(later), type=messages.Request)
    assert read == messages.Down(stop=True)
