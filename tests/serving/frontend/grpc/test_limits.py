"""Clients of gRPC that are slow, silent or too many: each costs itself, and nobody else."""

import socket
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest

from sublet.channel.codes import Code
from sublet.serving.frontend.grpc import frames
from sublet.serving.frontend.grpc.frames import Fault, Setting
from sublet.serving.frontend.limits import Limits, Pace
from sublet.serving.frontend.proto import serving, tensors
from support.grpc_server import Served, served
from support.h2client import POST, Client

PREDICT = "/tensorflow.serving.PredictionService/Predict"
WATCH = "/grpc.health.v1.Health/Watch"
QUICK = Limits(slow=0.1, idle=60.0, sweep=0.02, linger=0.05)


def request(model: str = "half", rows: int = 1) -> bytes:
    asked = serving("PredictRequest")()
    asked.model_spec.name = model
    asked.inputs["x"].ParseFromString(tensors.write(np.ones((rows, 1), np.float32)))
    data: bytes = asked.SerializeToString()
    return data


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def with_timeout(text: bytes) -> tuple[tuple[bytes, bytes], ...]:
    return (*POST, (b"grpc-timeout", text))


def works(server: Served) -> None:
    # Its own connection: grpcio shares those of one address, one that has just failed included.
    own = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(server.address, options=own) as channel:
        channel.unary_unary(PREDICT)(request(), timeout=60)


def told_to_go(client: Client) -> None:
    """Politely, and hung up on as it does not answer."""
    assert client.next(frames.GOAWAY).fault == Fault.NO_ERROR
    assert [each.kind for each in client.frames()] == [frames.PING]


def nothing_is_held(server: Served) -> None:
    server.until(lambda: not server.server.streams and not server.server.budget.taken)


def test_who_never_greets_is_hung_up_on(tmp_path: Path) -> None:
    with served(tmp_path, limits=QUICK) as server:
        for said in (b"", frames.PREFACE[:10], frames.PREFACE):
            with Client(server.port, greet=False) as client:
                client.send(said)
                client.raw()
        server.until(lambda: not server.server.connections)


def test_who_says_nothing_is_told_to_go_and_finds_back(tmp_path: Path) -> None:
    """A real client calls on as if nothing had happened."""
    limits = Limits(idle=0.1, sweep=0.02)
    with (
        served(tmp_path, limits=limits) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        call = channel.unary_unary(PREDICT)
        for _ in range(3):
            call(request(), timeout=60)
            server.until(lambda: not server.server.connections)


def test_who_does_not_answer_when_it_is_told_to_go_is_hung_up_on(tmp_path: Path) -> None:
    limits = Limits(idle=0.1, sweep=0.02, linger=0.05)
    with served(tmp_path, limits=limits) as server, Client(server.port) as client:
        told_to_go(client)


def test_whoever_has_a_call_under_way_is_not_silent(tmp_path: Path) -> None:
    limits = Limits(idle=0.05, slow=0.05, sweep=0.01, linger=0.01)
    heads = tuple((name, WATCH.encode() if name == b":path" else value) for name, value in POST)
    with served(tmp_path, limits=limits) as server, Client(server.port) as watching:
        watching.headers(1, heads)
        watching.data(1, framed(b""))
        watching.next(frames.DATA)
        for _ in range(3):  # Others come and are told to go meanwhile.
            with Client(server.port) as client:
                told_to_go(client)
        server.call(lambda: server.server.health.change(False))
        watching.next(frames.DATA)


def test_connections_beyond_the_most_are_told_so_and_others_go_on(tmp_path: Path) -> None:
    limits = Limits(connections=3, sweep=0.02)
    with served(tmp_path, limits=limits) as server, ExitStack() as opened:
        inside = [opened.enter_context(Client(server.port)) for _ in range(3)]
        for one in inside:
            one.next(frames.SETTINGS)
        with Client(server.port, greet=False) as client:
            reply = client.next(frames.GOAWAY)
            assert reply.fault == Fault.ENHANCE_YOUR_CALM
            assert b"too many connections" in reply.payload
        with grpc.insecure_channel(server.address) as channel:
            with pytest.raises(grpc.RpcError) as wrong:
                channel.unary_unary(PREDICT)(request(), timeout=60)
            assert wrong.value.code() is grpc.StatusCode.UNAVAILABLE
        inside[0].message(1, request())
        assert inside[0].status(1) == (0, "")
        inside[1].close()
        server.until(lambda: len(server.server.connections) < 3)
        works(server)


def test_many_more_are_hung_up_on_without_a_word(tmp_path: Path) -> None:
    limits = Limits(connections=3, sweep=60)
    with served(tmp_path, limits=limits) as server:
        # None of them reads or leaves, so each is kept for as long as it may be.
        crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
        for one in crowd[100:]:
            one.settimeout(60)
            while one.recv(1024):
                pass
        assert len(server.call(lambda: set(server.server.connections))) <= 3 + 32
        for one in crowd:
            one.close()


def test_the_silent_make_room_when_it_becomes_crowded(tmp_path: Path) -> None:
    limits = Limits(connections=8, slow=0.1, idle=60.0, sweep=0.02)
    with served(tmp_path, limits=limits) as server:
        crowd = [Client(server.port) for _ in range(7)]
        assert [one.next(frames.GOAWAY).fault for one in crowd[:1]] == [Fault.NO_ERROR]
        for one in crowd:
            one.close()
        server.until(lambda: not server.server.connections)
        few = [Client(server.port) for _ in range(4)]
        works(server)
        for one in few:
            one.message(1, request())
            assert one.status(1) == (0, "")
            one.close()


@pytest.mark.parametrize("body", [b"", b"\0\0", framed(bytes(1 << 20))[: 1 << 19]])
def test_a_request_that_comes_too_slowly_is_ended_and_its_connection_is_not(
    tmp_path: Path, body: bytes
) -> None:
    with served(tmp_path, limits=QUICK) as server, Client(server.port) as client:
        client.headers(1)
        for at in range(0, len(body), 16384):
            client.data(1, body[at : at + 16384], 0)
        assert client.status(1) == (Code.DEADLINE_EXCEEDED, "The request came too slowly.")
        client.message(3, request())
        assert client.status(3) == (0, "")
        nothing_is_held(server)


def test_a_client_that_stalls_does_not_keep_the_room_from_others(tmp_path: Path) -> None:
    data = framed(request(rows=100_000))
    limits = Limits(slow=1.0, idle=60.0, sweep=0.05)
    with served(tmp_path, budget=len(data), limits=limits) as server, Client(server.port) as client:
        client.headers(1)
        for at in range(0, len(data) - 5000, 16384):
            client.data(1, data[at : min(at + 16384, len(data) - 5000)], 0)
        server.until(lambda: server.server.budget.taken > len(data) // 2)
        with Client(server.port) as other:
            other.headers(1)
            for at in range(0, len(data), 16384):
                other.data(1, data[at : at + 16384], 0)
            assert other.status(1)[0] == Code.RESOURCE_EXHAUSTED
        assert client.status(1)[0] == Code.DEADLINE_EXCEEDED
        nothing_is_held(server)
        works(server)


def test_a_deadline_that_passes_within_the_body_frees_what_has_come(tmp_path: Path) -> None:
    limits = Limits(sweep=0.02)
    with served(tmp_path, limits=limits) as server, Client(server.port) as client:
        client.headers(1, with_timeout(b"200m"))
        client.data(1, framed(bytes(1 << 20))[:16384], 0)
        assert client.status(1) == (Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
        nothing_is_held(server)


def test_a_deadline_that_passes_while_the_model_runs_ends_the_call(tmp_path: Path) -> None:
    with served(tmp_path, limits=Limits(sweep=0.02)) as server, Client(server.port) as client:
        client.headers(1, with_timeout(b"100m"))
        client.data(1, framed(request("slow")))
        assert client.status(1) == (Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
        server.until(lambda: server.backend.cancelled == 1)
        nothing_is_held(server)


@pytest.mark.parametrize("text", [b"99999999H", b"99999999S", b"1n"])
def test_the_longest_and_shortest_timeouts_are_taken(tmp_path: Path, text: bytes) -> None:
    with served(tmp_path) as server, Client(server.port) as client:
        client.headers(1, with_timeout(text))
        client.data(1, framed(request()))
        assert client.status(1)[0] in (0, Code.DEADLINE_EXCEEDED)


@pytest.mark.parametrize(
    "raw",
    [
        b"\0\0\10",
        frames.frame(frames.PING, 0, 0, bytes(8))[:-1],
        frames.frame(frames.HEADERS, 0, 1, b"\x82"),
    ],
)
def test_half_a_frame_or_half_the_headers_are_not_waited_for(tmp_path: Path, raw: bytes) -> None:
    with served(tmp_path, limits=QUICK) as server, Client(server.port) as client:
        client.send(raw)
        assert client.goaway() == Fault.ENHANCE_YOUR_CALM


def test_an_answer_that_nobody_takes_is_not_kept_for_ever(tmp_path: Path) -> None:
    limits = Limits(idle=0.3, sweep=0.02)
    with served(tmp_path, limits=limits) as server, Client(server.port, greet=False) as client:
        none = {Setting.INITIAL_WINDOW_SIZE: 0}
        client.send(frames.PREFACE + frames.settings(none))
        client.message(1, request(rows=1000))
        server.until(lambda: server.server.budget.taken >= 4000)
        assert client.next(frames.RST_STREAM, 1).fault == Fault.CANCEL
        nothing_is_held(server)


def test_answers_that_nobody_takes_count(tmp_path: Path) -> None:
    data = request(rows=1000)
    with (
        served(tmp_path, budget=3 * len(data)) as server,
        Client(server.port, greet=False) as client,
    ):
        none = {Setting.INITIAL_WINDOW_SIZE: 0}
        client.send(frames.PREFACE + frames.settings(none))
        for stream in range(1, 21, 2):
            client.message(stream, data)
        ended = next(
            each
            for each in client.frames()
            if each.kind == frames.HEADERS and each.flags & frames.END_STREAM
        )
        assert b"grpc-status\x01%d" % Code.RESOURCE_EXHAUSTED in ended.payload
        assert server.call(lambda: server.server.budget.taken) <= 3 * len(data)


def test_calls_under_way_are_bounded_over_all_connections(tmp_path: Path) -> None:
    with served(tmp_path, limits=Limits(streams=4)) as server:
        with Client(server.port) as one, Client(server.port) as other:
            for stream in (1, 3, 5, 7):
                one.message(stream, request("slow"))
            server.until(lambda: server.server.streams == 4)
            other.message(1, request())
            code, text = other.status(1)
            assert (code, "too many calls" in text) == (Code.RESOURCE_EXHAUSTED, True)
            server.call(server.backend.gate.set)
            assert one.status(1) == (0, "")
        nothing_is_held(server)
        works(server)


def test_a_body_must_come_at_the_rate_in_every_span() -> None:
    limits = Limits(slow=10.0, rate=1000)
    steady = Pace(0.0)
    for second in range(1, 100):
        assert not steady.too_slow(second * 1001, float(second), limits)
    # Who has sent much at first has to go on, too.
    stalled = Pace(0.0)
    assert not stalled.too_slow(10**9, 10.5, limits)
    assert not stalled.too_slow(10**9 + 1000, 20.0, limits)
    assert stalled.too_slow(10**9 + 1000, 21.0, limits)
