"""What hangs, or is stopped, while models are served: it is noticed, said and replaced."""

import contextlib
import http.client
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.sandbox import Sandbox, wait_for
from support.servers import HALF, MODELS, Server, place

LOOPING = MODELS.parent / "models" / "looping" / "1"
READER = MODELS.parent / "models" / "reader" / "1"
LOOPS = ("loop0", "loop1", "loop2", "loop3")
"""One for each place of an engine: each runs one batch at a time."""
_FRONT_END = "sublet.serving.frontend.process"
_ENGINE = "sublet.engine"
WORDS = (
    *("--watchdog", "9s", "--rest_api_timeout_in_ms", "1000"),
    *("--file_system_poll_wait_seconds", "0.1", "--load_retry_interval_micros", "3600000000"),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    place(HALF, root, "half", 1)
    for name in LOOPS:
        place(LOOPING, root, name, 1)
    place(READER, root, "reader", 1)
    return root


@pytest.fixture(scope="module")
def server(shared_sandbox: Sandbox, models: Path) -> Iterator[Server]:
    one = Server(shared_sandbox, str(models), *WORDS)
    yield one
    assert one.close() == 0


@pytest.fixture(autouse=True)
def _well(server: Server) -> Iterator[None]:
    """Each test begins and ends with a server that is ready."""
    wait_for(lambda: ready(server) == 200, "it is ready")
    yield
    wait_for(lambda: answers(server, "half"), "it answers")


def engine(server: Server) -> int:
    """Its process; while one takes another's place, that is waited for."""
    found: list[int] = wait_for(lambda: server.children(_ENGINE), "there is an engine")
    return found[-1]


def answers(server: Server, name: str) -> bool:
    return server.predict(name, [1.0])[0] == 200


def ready(server: Server) -> int:
    connection = server.connection()
    try:
        connection.request("GET", "/v2/health/ready")
        reply = connection.getresponse()
        reply.read()
        return reply.status
    finally:
        connection.close()


def was_read(connection: http.client.HTTPConnection) -> bool:
    """Whether the other end has taken the connection, and all that was sent, as the kernel says."""
    own, other = (
        sock[1] for sock in (connection.sock.getsockname(), connection.sock.getpeername())
    )
    for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, _, _, _, _, inode, *_ = row.split()
        if (int(local[-4:], 16), int(remote[-4:], 16)) == (other, own):
            return inode != "0" and queues.endswith(":00000000")
    return False


def said(server: Server) -> str:
    return "".join(server.errors)


def test_endless_calls_that_nobody_waits_for_are_interrupted_and_others_go_on(
    server: Server,
) -> None:
    before = engine(server)
    for name in LOOPS:  # When all places are taken, it is not even begun.
        assert server.predict(name, [[0.0]])[0] == 504
    wait_for(lambda: answers(server, "half"), "others are answered again")
    assert "loop0 version 1 has run for" in said(server)
    assert "nobody waits for it any more. It is interrupted." in said(server)
    for name in LOOPS:
        wait_for(
            lambda name=name: server.predict(name, [[3.0]]) == (200, {"predictions": [[192.0]]}),  # type: ignore[misc]
            f"{name} is answered",
        )
    assert engine(server) == before


def test_an_engine_that_cannot_be_interrupted_is_replaced_and_its_model_put_away(
    server: Server, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # Who reads it waits for somebody who writes, in an operation of TensorFlow.
    for times in (1, 2):
        before = engine(server)
        while engine(server) == before:
            status, _ = server._speak("POST", "/v1/models/reader:predict", {"inputs": str(pipe)})
            assert status in (503, 504)
        wait_for(lambda: answers(server, "half"), "others are answered again")
        ends = said(server).count("could not be interrupted, and was ended while it ran reader 1")
        assert ends == times
    wait_for(lambda: server.states("reader") == {1: "END"}, "it is put away")
    status, answer = server._speak("POST", "/v1/models/reader:predict", {"inputs": str(pipe)})
    assert status == 503
    assert "--isolate reader" in answer["error"]


def test_a_stopped_engine_is_not_ready_and_is_replaced(server: Server) -> None:
    before = engine(server)
    os.kill(before, signal.SIGSTOP)
    wait_for(lambda: ready(server) == 503, "it says so")
    wait_for(lambda: answers(server, "half"), "another one answers")
    assert engine(server) != before
    assert "was stopped and did not go on" in said(server)
    wait_for(lambda: not Path(f"/proc/{before}").exists(), "the old one is gone")


def test_a_stopped_front_end_is_replaced(server: Server) -> None:
    (before,) = server.children(_FRONT_END)
    os.kill(before, signal.SIGSTOP)
    wait_for(
        lambda: (
            {*server.children(_FRONT_END)} - {before} and before not in server.sandbox.processes()
        ),
        "there is another one",
    )
    assert "a front end did not answer for" in said(server)
    assert answers(server, "half")


@pytest.mark.parametrize("signals", [1, 2])
def test_a_server_whose_engine_is_stopped_ends(
    sandbox: Sandbox, models: Path, signals: int
) -> None:
    server = Server(sandbox, str(models / "half"), "--drain", "1s" if signals == 1 else "60s")
    pid = engine(server)
    if signals == 1:
        # One that goes on soon is not replaced.
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: ready(server) == 503, "it is noticed")
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: ready(server) == 200, "it is ready again")
        assert engine(server) == pid
    os.kill(pid, signal.SIGSTOP)
    connection = server.connection()
    connection.request("POST", "/v1/models/half:predict", '{"instances": [1.0]}')
    wait_for(lambda: was_read(connection), "the front end has the request")
    for _ in range(signals):
        server.signal(signal.SIGTERM)
        if signals > 1:
            wait_for(lambda: not listens(server), "it takes no more connections")
    assert server.close() == 128 + signal.SIGTERM
    connection.close()
    assert not Path(f"/proc/{pid}").exists()


def test_who_waits_for_a_killed_server_is_not_told_that_it_has_cancelled_its_call(
    sandbox: Sandbox, models: Path
) -> None:
    server = Server(sandbox, str(models / "half"))
    os.kill(engine(server), signal.SIGSTOP)
    connection = server.connection()
    connection.request("POST", "/v1/models/half:predict", '{"instances": [1.0]}')
    wait_for(lambda: was_read(connection), "the front end has the request")
    server.signal(signal.SIGKILL)
    with contextlib.suppress(http.client.HTTPException, OSError):
        assert connection.getresponse().status == 503
    connection.close()
    assert server.close() == -signal.SIGKILL


def listens(server: Server) -> bool:
    connection = server.connection()
    try:
        connection.connect()
    except OSError:
        return False
    finally:
        connection.close()
    return True
