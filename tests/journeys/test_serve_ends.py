"""How a server ends: it answers what has come, and no longer than it may."""

import json
import signal
import threading
from typing import Any

import pytest

from sublet.serving.client.engine_directory import list_models
from support.sandbox import PATIENCE, Sandbox, wait_for
from support.servers import ENDLESS, HALF, Load, Server


@pytest.fixture
def slow(sandbox: Sandbox) -> list[str]:
    """Words for a server whose batches wait half a minute to be full: of two requests."""
    file = sandbox.write("batching.config", _BATCHING.format(wait=30_000_000))
    return [str(HALF.parent), "--enable_batching", "--batching_parameters_file", str(file)]


_BATCHING = "max_batch_size {{ value: 2 }} batch_timeout_micros {{ value: {wait} }}"


class Call(threading.Thread):
    """One request that was sent and not answered yet."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.answer: Any = None
        self._connection = server.connection()
        self._connection.connect()
        self.start()

    def run(self) -> None:
        body = json.dumps({"instances": [1.0]})
        try:
            name = "saved_model_half_plus_two_cpu"
            self._connection.request("POST", f"/v1/models/{name}:predict", body)
            self.answer = json.loads(self._connection.getresponse().read())
        except OSError as error:
            self.answer = error
        finally:
            self._connection.close()


def waiting() -> bool:
    """Whether a request is in an engine's queue."""
    return any(row.waiting for row in list_models())


@pytest.fixture(autouse=True)
def _same_home(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that this process finds the engines, too."""
    monkeypatch.setenv("SUBLET_HOME", str(sandbox.home))


def test_no_request_fails_when_it_is_ended_under_load(sandbox: Sandbox) -> None:
    name = HALF.parent.name
    server = Server(sandbox, str(HALF.parent), "--frontends", "2")
    with Load(server, name, [2.5], clients=6) as load:
        wait_for(lambda: load.calls > 50, "there is load")
        server.signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
    assert not load.wrong
    assert server.close() == 0


def test_a_request_that_waits_is_answered_before_it_ends(sandbox: Sandbox) -> None:
    file = sandbox.write("batching.config", _BATCHING.format(wait=8_000_000))
    server = Server(sandbox, str(HALF.parent), "--batching_parameters_file", str(file))
    call = Call(server)
    wait_for(waiting, "the request waits for others")
    server.signal(signal.SIGTERM)
    call.join()
    assert call.answer == {"predictions": [2.5]}
    assert server.close() == 0


def test_a_second_signal_ends_it_at_once(sandbox: Sandbox, slow: list[str]) -> None:
    server = Server(sandbox, *slow)
    call = Call(server)
    wait_for(waiting, "the request waits for others")
    server.signal(signal.SIGTERM)
    wait_for(lambda: not listens(server), "it takes no more connections")
    wait_for(lambda: "ending: what has come" in "".join(server.errors), "it says what it waits for")
    assert call.is_alive()
    server.signal(signal.SIGINT)
    assert server.close() == 128 + signal.SIGINT
    call.join()
    assert isinstance(call.answer, OSError)


def test_draining_takes_no_longer_than_it_may(sandbox: Sandbox, slow: list[str]) -> None:
    server = Server(sandbox, *slow, "--drain", "200ms")
    call = Call(server)
    wait_for(waiting, "the request waits for others")
    server.signal(signal.SIGTERM)
    assert server.close() == 128 + signal.SIGTERM
    call.join()
    assert any("still running" in line for line in server.errors)


def test_a_signal_before_it_is_ready_ends_it(sandbox: Sandbox) -> None:
    server = Server(sandbox, str(ENDLESS.parent), ready=False)
    wait_for(lambda: server.children("sublet.engine"), "an engine is being started")
    server.signal(signal.SIGTERM)
    assert server.close() == 128 + signal.SIGTERM


def listens(server: Server) -> bool:
    connection = server.connection()
    try:
        connection.connect()
    except OSError:
        return False
    finally:
        connection.close()
    return True
