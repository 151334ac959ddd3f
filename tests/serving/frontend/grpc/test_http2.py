"""Clients that break HTTP/2 lose their stream or their connection, and nobody else notices."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sublet.serving.frontend.grpc import conversation, frames, hpack, streams
from sublet.serving.frontend.grpc.frames import Fault, Setting, frame
from sublet.serving.frontend.limits import share
from sublet.serving.frontend.proto import inference, serving, tensors
from support.grpc_server import Served, served
from support.h2client import POST, Client, Frame
from support.sandbox import wait_for

END = frames.END_HEADERS | frames.END_STREAM


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("http2")) as server:
        yield server
        with Client(server.port) as client:
            client.message(1, REQUEST)
            assert client.status(1) == (0, "")


def _request(model: str = "half") -> bytes:
    request = serving("PredictRequest")()
    request.model_spec.name = model
    request.inputs["x"].ParseFromString(tensors.write(np.array([1, 2, 5], np.float32)))
    data: bytes = request.SerializeToString()
    return data


REQUEST = _request()
BODY = b"\0" + len(REQUEST).to_bytes(4, "big") + REQUEST
BLOCK = hpack.encode(POST)


def _headers(stream: int = 1, flags: int = frames.END_HEADERS, block: bytes = BLOCK) -> bytes:
    return frame(frames.HEADERS, flags, stream, block)


def _setting(key: int, value: int) -> bytes:
    payload = key.to_bytes(2, "big") + value.to_bytes(4, "big")
    return frame(frames.SETTINGS, 0, 0, payload)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (frame(frames.DATA, 0, 0, b"x"), Fault.PROTOCOL_ERROR),
        (frame(frames.DATA, 0, 1, b"x"), Fault.PROTOCOL_ERROR),
        (b"\x20\0\0\0\0\0\0\0\1", Fault.FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, 0, 0, b"x" * 20_000), Fault.FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, 0, 0, b"\0" * 200_000), Fault.ENHANCE_YOUR_CALM),
        (_headers() + frame(frames.DATA, frames.PADDED, 1, b"\5abc"), Fault.PROTOCOL_ERROR),
        (_headers() + frame(frames.DATA, frames.PADDED, 1), Fault.PROTOCOL_ERROR),
        (_headers(stream=0), Fault.PROTOCOL_ERROR),
        (_headers(stream=2), Fault.PROTOCOL_ERROR),
        (_headers(flags=END | frames.PADDED, block=b"\x09ab"), Fault.PROTOCOL_ERROR),
        (_headers(flags=END | frames.PRIORITIZED, block=b"ab"), Fault.FRAME_SIZE_ERROR),
        (_headers(block=b"\xff\xff\xff\xff\xff\xff"), Fault.COMPRESSION_ERROR),
        (_headers(flags=0) + frame(frames.PING, 0, 0, b"12345678"), Fault.PROTOCOL_ERROR),
        (_headers(flags=0) + frame(frames.CONTINUATION, 0, 3, b"x"), Fault.PROTOCOL_ERROR),
        (_headers(flags=0) + frame(frames.CONTINUATION, 0, 1) * 64, Fault.ENHANCE_YOUR_CALM),
        (
            _headers(flags=0) + frame(frames.CONTINUATION, 0, 1, b"\x82" * 16_000) * 9,
            Fault.ENHANCE_YOUR_CALM,
        ),
        (_headers(flags=0) + frame(77, 0, 0, b"x" * 20_000), Fault.PROTOCOL_ERROR),
        (_headers(flags=END) + _headers(flags=END), Fault.STREAM_CLOSED),
        (_headers(3, END) + _headers(1, END), Fault.STREAM_CLOSED),
        (frame(frames.CONTINUATION, 0, 1, b"x"), Fault.PROTOCOL_ERROR),
        (frame(frames.PRIORITY, 0, 0, b"12345"), None),
        (frame(frames.PRIORITY, 0, 0, b"1234"), Fault.FRAME_SIZE_ERROR),
        (frame(frames.RST_STREAM, 0, 0, b"1234"), Fault.PROTOCOL_ERROR),
        (frame(frames.RST_STREAM, 0, 5, b"1234"), Fault.PROTOCOL_ERROR),
        (_headers() + frame(frames.RST_STREAM, 0, 1, b"123"), Fault.FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, 0, 1), Fault.PROTOCOL_ERROR),
        (frame(frames.SETTINGS, 0, 0, b"12345"), Fault.FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, frames.ACK, 0, b"123456"), Fault.FRAME_SIZE_ERROR),
        (_setting(Setting.INITIAL_WINDOW_SIZE, 2**31), Fault.FLOW_CONTROL_ERROR),
        (_setting(Setting.MAX_FRAME_SIZE, 16_383), Fault.PROTOCOL_ERROR),
        (_setting(Setting.MAX_FRAME_SIZE, 2**24), Fault.PROTOCOL_ERROR),
        (_setting(Setting.ENABLE_PUSH, 2), Fault.PROTOCOL_ERROR),
        (_setting(99, 1), None),
        (frame(frames.PUSH_PROMISE, 0, 1, b"1234"), Fault.PROTOCOL_ERROR),
        (frame(frames.PING, 0, 1, b"12345678"), Fault.PROTOCOL_ERROR),
        (frame(frames.PING, 0, 0, b"1234"), Fault.FRAME_SIZE_ERROR),
        (frame(frames.GOAWAY, 0, 1, b"12345678"), Fault.PROTOCOL_ERROR),
        (frames.window_update(0, 0), Fault.PROTOCOL_ERROR),
        (frames.window_update(0, 2**31 - 1) * 2, Fault.FLOW_CONTROL_ERROR),
        (frames.window_update(5, 1), Fault.PROTOCOL_ERROR),
        (frame(frames.WINDOW_UPDATE, 0, 0, b"123"), Fault.FRAME_SIZE_ERROR),
        (frame(77, 0, 0, b"unknown kinds are passed over"), None),
        (frame(77, 0, 0, b"x" * 1_000_000), None),
        (frame(frames.GOAWAY, 0, 0, b"\0" * 20_000), None),
    ],
)
def test_a_broken_connection_ends_with_the_reason(
    server: Served, data: bytes, fault: Fault | None
) -> None:
    with Client(server.port) as client:
        client.send(data)
        if fault is None:
            client.message(7, REQUEST)
            assert client.status(7) == (0, "")
        else:
            assert client.goaway() == fault


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (frames.window_update(1, 0), Fault.PROTOCOL_ERROR),
        (frames.window_update(1, 2**31 - 1), Fault.FLOW_CONTROL_ERROR),
        (frame(frames.PRIORITY, 0, 1, b"x"), Fault.FRAME_SIZE_ERROR),
        (_headers(), Fault.PROTOCOL_ERROR),
        (_headers(flags=END), Fault.PROTOCOL_ERROR),  # No trailers: it has pseudo-headers.
        (_headers(flags=END, block=hpack.encode(((b"a b", b"c"),))), Fault.PROTOCOL_ERROR),
        (frames.reset(1, Fault.CANCEL) + frame(frames.DATA, 0, 1, b"x"), Fault.STREAM_CLOSED),
    ],
)
def test_a_broken_stream_is_reset_and_the_others_go_on(
    server: Served, data: bytes, fault: Fault
) -> None:
    with Client(server.port) as client:
        client.headers(1)
        client.send(data)
        assert client.next(frames.RST_STREAM, 1).fault == fault
        client.message(3, REQUEST)
        assert client.status(3) == (0, "")


@pytest.mark.parametrize(
    "headers",
    [
        POST[:2],
        (*POST, (b":path", b"/x")),
        (*POST, (b"Upper", b"x")),
        (*POST, (b"connection", b"close")),
        ((b"te", b"trailers"), *POST[:5]),
        (*POST[:2], (b":status", b"200"), *POST[2:]),
        (*POST, (b"", b"x")),
        (*POST, (b"a b", b"x")),
        (*POST, (b"a:b", b"x")),
        (*POST, (b"a\x7f", b"x")),
        (*POST, (b"a", b"x\r\nb: y")),
        (*POST, (b"a", b"x\0")),
        (*POST, (b"a", b"x\n")),
        (*POST[:5], (b"te", b"gzip")),
        (*POST[:2], (b":path", b""), *POST[3:]),
        (*POST, (b"content-length", b"+5")),
    ],
)
def test_headers_that_are_no_http_reset_the_stream(server: Served, headers: hpack.Headers) -> None:
    with Client(server.port) as client:
        client.headers(1, headers)
        assert client.next(frames.RST_STREAM, 1).fault == Fault.PROTOCOL_ERROR


@pytest.mark.parametrize("announced", [len(BODY) - 1, len(BODY) + 1])
def test_a_body_of_another_length_than_announced_resets_the_stream(
    server: Served, announced: int
) -> None:
    with Client(server.port) as client:
        for stream, length in ((1, announced), (3, len(BODY))):
            client.headers(stream, (*POST, (b"content-length", b"%d" % length)))
            client.data(stream, BODY[:40], 0)
            client.data(stream, BODY[40:])
        assert client.next(frames.RST_STREAM, 1).fault == Fault.PROTOCOL_ERROR
        assert client.status(3) == (0, "")


def test_what_is_sent_before_a_refusal_was_heard_is_passed_over(server: Served) -> None:
    """The headers have their answer at once, and the body is on its way."""
    with Client(server.port) as client:
        client.headers(1, (*POST[:2], (b":path", b"/no.such/Method"), *POST[3:]))
        client.data(1, BODY, 0)
        client.headers(1, ((b"last", b"words"),), END)
        assert client.status(1)[0] == 12
        client.message(3, REQUEST)
        assert client.status(3) == (0, "")


def test_an_empty_continuation_is_legal(server: Served) -> None:
    with Client(server.port) as client:
        client.send(_headers(flags=0))
        client.send(frame(frames.CONTINUATION, 0, 1) * 3)
        client.send(frame(frames.CONTINUATION, frames.END_HEADERS, 1))
        client.data(1, BODY)
        assert client.status(1) == (0, "")


def test_what_is_http_but_no_grpc_gets_its_status(server: Served) -> None:
    for status, headers in (
        (b"405", ((b":method", b"GET"), *POST[1:])),
        (b"415", (*POST[:4], (b"content-type", b"text/html"))),
        (b"415", (*POST[:4], (b"content-type", b"application/grpc-web+proto"))),
        (b"415", POST[:4]),
    ):
        with Client(server.port) as client:
            client.headers(1, headers, END)
            block = client.next(frames.HEADERS, 1).payload
            assert dict(hpack.Decoder().decode(block))[b":status"] == status


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "The call has no message."),
        (BODY[:4], "The last message is cut off."),
        (BODY[:-1], "The last message is cut off."),
        (BODY * 2, "This method takes one message."),
        (b"\2" + BODY[1:], "A message has an unknown flag."),
        (b"\1" + BODY[1:], "A message is compressed, but"),
    ],
)
def test_bodies_that_are_no_message_are_refused(server: Served, body: bytes, text: str) -> None:
    with Client(server.port) as client:
        client.headers(1)
        client.data(1, body)
        code, reply = client.status(1)
        assert code == 13
        assert text in reply
        client.message(3, REQUEST)
        assert client.status(3) == (0, "")


def test_an_unknown_compression_is_unimplemented_and_a_broken_one_an_error(server: Served) -> None:
    for encoding, code in ((b"snappy", 12), (b"gzip", 13)):
        with Client(server.port) as client:
            client.headers(1, (*POST, (b"grpc-encoding", encoding)))
            client.data(1, b"\1" + BODY[1:])
            assert client.status(1)[0] == code


def test_requests_come_in_any_pieces(server: Served) -> None:
    cut = len(BLOCK) // 2
    data = (
        frames.PREFACE
        + frames.settings({})
        + _headers(flags=0, block=BLOCK[:cut])
        + frame(frames.CONTINUATION, frames.END_HEADERS, 1, BLOCK[cut:])
        + frame(frames.DATA, frames.PADDED, 1, b"\3" + BODY[:7] + b"\0\0\0")
        + frame(frames.DATA, 0, 1, BODY[7:])
        + frame(frames.HEADERS, END, 1, hpack.encode(((b"trailer", b"x"),)))
    )
    for size in (1, 7, 100):
        with Client(server.port, greet=False) as client:
            for at in range(0, len(data), size):
                client.send(data[at : at + size])
            assert client.status(1) == (0, "")


def test_headers_with_priority_and_padding_are_read(server: Served) -> None:
    block = b"\2" + b"\0\0\0\0\x10" + BLOCK + b"\0\0"
    with Client(server.port) as client:
        flags = frames.END_HEADERS | frames.PADDED | frames.PRIORITIZED
        client.send(_headers(flags=flags, block=block))
        client.data(1, BODY)
        assert client.status(1) == (0, "")


def test_pings_are_answered(server: Served) -> None:
    with Client(server.port) as client:
        client.send(frame(frames.PING, 0, 0, b"12345678"))
        answer = client.next(frames.PING)
        assert (answer.flags, answer.payload) == (frames.ACK, b"12345678")


def test_who_speaks_something_else_is_told(server: Served) -> None:
    with Client(server.port, greet=False) as client:
        client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = client.raw()
        assert answer.startswith(b"HTTP/1.1 400 ")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}".encode() in head


def test_settings_must_come_first(server: Served) -> None:
    with Client(server.port, greet=False) as client:
        client.send(frames.PREFACE + frame(frames.PING, 0, 0, b"12345678"))
        assert client.goaway() == Fault.PROTOCOL_ERROR


def test_answers_wait_for_the_window_of_the_client(server: Served) -> None:
    with Client(server.port, greet=False) as client:
        client.send(
            frames.PREFACE
            + frames.settings({Setting.INITIAL_WINDOW_SIZE: 10})
            + frames.window_update(0, 100)
        )
        client.message(1, REQUEST)
        first = client.next(frames.DATA, 1).payload
        assert len(first) <= 10
        size = int.from_bytes(first[1:5], "big") + 5
        got = first
        client.send(frame(frames.PING, 0, 0, b"12345678"))
        for each in client.frames():
            if each.kind == frames.PING:
                break
            if each.kind == frames.DATA:
                got += each.payload
        assert len(got) == 10
        client.send(_setting(Setting.INITIAL_WINDOW_SIZE, 20))
        while len(got) < 20:
            got += client.next(frames.DATA, 1).payload
        client.send(frames.window_update(1, 1000))
        while len(got) < size:
            got += client.next(frames.DATA, 1).payload
        assert len(got) == size
        assert client.status(1) == (0, "")


def test_room_is_given_back_while_a_large_message_comes(server: Served) -> None:
    with Client(server.port) as client:
        client.headers(1)
        client.data(1, b"\0\x7f\xff\xff\xff", 0)
        piece = b"x" * 65536
        for _ in range(streams.WINDOW // 2 // len(piece) + 1):
            client.data(1, piece, 0)
        room = client.next(frames.WINDOW_UPDATE, 1).payload
        assert int.from_bytes(room, "big") > streams.WINDOW // 2


def test_requests_that_stay_incomplete_fill_a_bounded_room_and_leave_it(tmp_path: Path) -> None:
    with served(tmp_path, budget=1_000_000) as server:
        with Client(server.port) as client:
            half = b"\0\x7f\xff\xff\xff" + b"x" * 400_000
            for stream in (1, 3):
                client.headers(stream)
                client.data(stream, half, 0)
            client.headers(5)
            client.data(5, half, 0)
            code, reply = client.status(5)
            assert code == 8
            assert "Try again later" in reply
            client.message(7, REQUEST)
            assert client.status(7) == (0, "")
            client.send(frames.reset(1, Fault.CANCEL))
            server.until(lambda: server.server.budget.taken == 400_000)
        server.until(lambda: server.server.budget.taken == 0)


def test_servers_of_one_machine_share_its_budget() -> None:
    assert share(4) == share() // 4


def test_a_stream_whose_service_is_behind_gets_no_more_budget(server: Served) -> None:
    path = b"/inference.GRPCInferenceService/ModelStreamInfer"
    request = inference("ModelInferRequest")(model_name="slow", raw_input_contents=[b"\0\0\0\0"])
    request.inputs.add(name="x", datatype="FP32", shape=[1])
    request.id = "x" * 60_000
    message = request.SerializeToString()
    body = b"\0" + len(message).to_bytes(4, "big") + message
    begun = server.backend.begun
    with Client(server.port) as client:
        client.headers(1, (*POST[:2], (b":path", path), *POST[3:]))
        count = streams.WINDOW // len(body)
        for _ in range(count):
            client.data(1, body, 0)
        client.send(frame(frames.PING, 0, 0, b"12345678"))
        for each in client.frames():
            assert (each.kind, each.stream) != (frames.WINDOW_UPDATE, 1)
            if each.kind == frames.PING:
                break
        server.until(lambda: server.backend.begun == begun + 1)
        assert server.server.budget.taken == (count - 1) * len(message)
        client.data(1, b"x" * 65536, 0)
        assert client.next(frames.RST_STREAM, 1).fault == Fault.FLOW_CONTROL_ERROR
    server.until(lambda: server.server.budget.taken == 0)


def test_streams_beyond_the_limit_are_refused_and_the_first_ones_answered(server: Served) -> None:
    with Client(server.port) as client:
        last = 2 * conversation.MOST_STREAMS + 1
        for stream in range(1, last + 1, 2):
            client.headers(stream)
        assert client.next(frames.RST_STREAM).fault == Fault.REFUSED_STREAM
        client.data(1, BODY)
        assert client.status(1) == (0, "")


@pytest.fixture
def few_resets(monkeypatch: pytest.MonkeyPatch) -> int:
    """So few that a slow machine takes in more of them within a second, too."""
    monkeypatch.setattr(conversation, "MOST_RESETS", 20)
    return 20


def test_a_client_that_opens_and_resets_without_end_is_told_to_calm_down(
    server: Served, few_resets: int
) -> None:
    with Client(server.port) as client:
        streams = range(1, 2 * few_resets + 3, 2)
        client.send(b"".join(_headers(n) + frames.reset(n, Fault.CANCEL) for n in streams))
        assert client.goaway() == Fault.ENHANCE_YOUR_CALM


def test_resets_that_a_client_provokes_are_counted_as_well(server: Served, few_resets: int) -> None:
    with Client(server.port) as client:
        streams = range(1, 2 * few_resets + 3, 2)
        client.send(b"".join(_headers(n) + frames.window_update(n, 0) for n in streams))
        assert client.goaway() == Fault.ENHANCE_YOUR_CALM


def test_who_does_not_read_answers_is_not_read_until_it_does(server: Served) -> None:
    request = serving("PredictRequest")()
    request.model_spec.name = "echo"
    request.model_spec.signature_name = "float"
    request.inputs["x"].ParseFromString(tensors.write(np.zeros(250_000, np.float32)))
    message = request.SerializeToString()
    with Client(server.port, greet=False) as client:
        window = frames.LARGEST_WINDOW
        client.send(
            frames.PREFACE
            + frames.settings({Setting.INITIAL_WINDOW_SIZE: window})
            + frames.window_update(0, window - 65535)
        )
        numbers = range(1, 101, 2)
        sending = threading.Thread(target=lambda: _send_all(client, numbers, message))
        sending.start()
        server.until(lambda: any(not each.reading for each in server.connections()))
        with Client(server.port) as other:
            other.message(1, REQUEST)
            assert other.status(1) == (0, "")
        ended = {each.stream for each in _endings(client, len(numbers))}
        sending.join()
        assert ended == set(numbers)


def _send_all(client: Client, numbers: range, message: bytes) -> None:
    for stream in numbers:
        client.message(stream, message)


def _endings(client: Client, count: int) -> list[Frame]:
    ends = (e for e in client.frames() if e.kind == frames.HEADERS and e.flags & frames.END_STREAM)
    return list(itertools.islice(ends, count))


def test_a_stream_whose_last_message_is_broken_leaves_no_task(server: Served) -> None:
    path = b"/inference.GRPCInferenceService/ModelStreamInfer"
    with Client(server.port) as client:
        client.headers(1, (*POST[:2], (b":path", path), *POST[3:]))
        client.data(1, b"\0\0\0")
        assert client.status(1)[0] == 13
    server.until(lambda: not server.connections())
    wait_for(partial(_at_rest, server), "no task is left")


def _at_rest(server: Served) -> bool:
    """Whether all there is are the server itself, and this look at it."""
    return server.call(lambda: len(asyncio.all_tasks())) <= 2


def test_headers_that_are_too_many_fail_their_call_only(server: Served) -> None:
    """In one frame of the size that was announced, as grpcio sends them, and in several."""
    many = tuple((b"x-%d" % n, b"y" * 100) for n in range(200))
    block = hpack.encode((*POST, *many))
    with Client(server.port) as client:
        client.send(_headers(flags=frames.END_STREAM, block=block[:16_000]))
        client.send(frame(frames.CONTINUATION, frames.END_HEADERS, 1, block[16_000:]))
        assert client.status(1) == (8, "The headers are too large.")
        assert len(block) > 16_384
        client.send(_headers(3, END, block))
        assert client.status(3) == (8, "The headers are too large.")
        client.message(5, REQUEST)
        assert client.status(5) == (0, "")


def test_a_call_whose_time_is_up_when_it_comes_is_not_run(server: Served) -> None:
    begun = server.backend.begun
    with Client(server.port) as client:
        client.headers(1, (*POST, (b"grpc-timeout", b"0n")))
        client.data(1, BODY)
        assert client.status(1)[0] == 4
    assert server.backend.begun == begun


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.one_of(
            st.builds(
                frame,
                st.integers(0, 12),
                st.integers(0, 255),
                st.sampled_from([0, 1, 2, 3, 5, 2**31 - 1]),
                st.binary(max_size=40),
            ),
            st.just(_headers(1)),
            st.just(_headers(3)),
            st.just(frame(frames.DATA, frames.END_STREAM, 1, BODY)),
            st.binary(max_size=30),
        ),
        max_size=12,
    )
)
def test_random_frames_leave_the_server_unharmed(server: Served, pieces: list[bytes]) -> None:
    with Client(server.port) as client:
        client.send(b"".join(pieces))
    with Client(server.port) as client:
        client.message(1, REQUEST)
        assert client.status(1) == (0, "")
    server.until(lambda: not server.connections() and not server.server.budget.taken)
    wait_for(partial(_at_rest, server), "no task is left")
