"""Whoever is killed while models are served: others go on, it comes back, and nothing is left."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.sandbox import Sandbox, wait_for
from support.servers import ABORTING, ENDLESS, FRAGILE, HALF, THREE, Load, Server, place

POLL = ("--file_system_poll_wait_seconds", "0.1", "--load_retry_interval_micros", "3600000000")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    place(HALF, root, "half", 1)
    place(THREE, root, "apart", 1)
    return root


@pytest.fixture(scope="module")
def server(shared_sandbox: Sandbox, models: Path) -> Iterator[Server]:
    """Two engines and two front ends."""
    one = Server(shared_sandbox, str(models), "--isolate", "apart", "--frontends", "2", *POLL)
    yield one
    assert one.close() == 0


def job(server: Server, name: str) -> int:
    """The process of the engine with this name."""
    (lease,) = [one for one in server.sandbox.status()["leases"] if one["name"] == name]
    return int(lease["pid"])


def answers(server: Server, name: str) -> bool:
    return server.predict(name, [1.0])[0] == 200


def test_a_killed_engine_comes_back_with_its_models_and_others_do_not_notice(
    server: Server,
) -> None:
    with Load(server, "apart", [3.5], clients=2) as load, Load(server, "half", [2.5]) as hurt:
        os.kill(job(server, "serve: 1 model"), signal.SIGKILL)
        wait_for(lambda: hurt.wrong, "callers are told")
        wait_for(lambda: answers(server, "half"), "it is back")
    assert {answer[0] for answer in hurt.wrong} == {503}
    assert not load.wrong
    assert server.states("half") == {1: "AVAILABLE"}


def test_a_killed_keeper_costs_no_request(server: Server) -> None:
    with Load(server, "half", [2.5], clients=2) as load:
        keeper = psutil.Process(job(server, "serve: 1 model")).parent()
        assert keeper is not None
        keeper.kill()
        wait_for(lambda: not keeper.is_running(), "the keeper is gone")
        answered = load.calls
        wait_for(lambda: load.calls > answered + 10, "requests are answered")
    assert not load.wrong


def test_a_killed_front_end_is_replaced_and_its_port_never_closes(server: Server) -> None:
    before = server.children("sublet.serving.frontend.process")
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    # Whoever connects now waits for the next front end.
    assert answers(server, "half")
    wait_for(
        lambda: len(set(server.children("sublet.serving.frontend.process")) - set(before)) == 2,
        "both were replaced",
    )


def test_a_model_that_ends_the_engine_while_it_loads_is_left_out(
    server: Server, models: Path
) -> None:
    place(ABORTING, models, "aborting", 1)
    wait_for(lambda: server.states("aborting") == {1: "END"}, "it is given up")
    (status,) = server.get("/v1/models/aborting")[1]["model_version_status"]
    assert "while it loaded aborting 1" in status["status"]["error_message"]
    wait_for(lambda: answers(server, "half"), "the others are back")
    assert answers(server, "apart")


def test_a_model_that_ends_the_engine_while_it_runs_is_put_away_and_others_are_served(
    server: Server, models: Path
) -> None:
    place(FRAGILE, models, "fragile", 1)
    wait_for(lambda: server.states("fragile") == {1: "AVAILABLE"}, "it is served")
    reply = []
    with Load(server, "half", [2.5], clients=2) as load:
        while "--isolate" not in (answer := server.predict("fragile", [-1.0]))[1].get("error", ""):
            reply.append(answer)
            wait_for(
                lambda: (
                    server.predict("fragile", [1.0])[0] == 200
                    or "fragile version 1 is not served" in said(server)
                ),
                "it is back, or put away",
            )
        wait_for(lambda: answers(server, "half"), "the others are back")
    assert {status for status, _ in (*reply, answer, *load.wrong)} == {503}
    assert "ended while they ran fragile version 1" in answer[1]["error"]
    assert server.states("fragile") == {1: "END"}
    program = "import sublet; sublet.connect('fragile')"
    connecting = server.sandbox.python("-c", program).stderr
    assert f"ServingError: {answer[1]['error']}" in connecting
    assert answer[1]["error"] in " ".join(server.sandbox.sublet("models").stdout.split())
    wait_for(lambda: said(server).count("while it ran fragile 1") == 2, "both ends were told")
    with Load(server, "half", [2.5], clients=2) as load:
        for _ in range(10):
            assert server.predict("fragile", [-1.0])[0] == 503
    assert not load.wrong


def said(server: Server) -> str:
    return "".join(server.errors)


def test_a_killed_server_takes_everything_with_it(sandbox: Sandbox, models: Path) -> None:
    leases = len(sandbox.status()["leases"])
    one = Server(sandbox, str(models / "half"))
    assert len(sandbox.status()["leases"]) == leases + 1
    one.signal(signal.SIGKILL)
    assert one.close() == -signal.SIGKILL
    wait_for(lambda: len(sandbox.status()["leases"]) == leases, "its lease has ended")


def test_a_killed_broker_costs_no_request(server: Server) -> None:
    with Load(server, "half", [2.5], clients=2) as load:
        os.kill(server.sandbox.status()["pid"], signal.SIGKILL)
        assert server.sandbox.status()["leases"]
        answered = load.calls
        wait_for(lambda: load.calls > answered, "requests are answered")
    assert not load.wrong


def test_a_model_whose_loading_does_not_end_holds_a_server_up_for_so_long_and_no_longer(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    place(ENDLESS, tmp_path, "endless", 1)
    place(HALF, tmp_path, "half", 1)
    # Longer than a good model takes on a machine under any load.
    server = Server(sandbox, str(tmp_path), "--load_timeout", "8s")
    try:
        assert answers(server, "half")
        (status,) = server.get("/v1/models/endless")[1]["model_version_status"]
        assert status["state"] == "END"
        assert "--load_timeout" in status["status"]["error_message"]
    finally:
        assert server.close() == 0
