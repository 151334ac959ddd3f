"""`sublet serve`: models come, are called, are replaced and go, over plain HTTP."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest

from sublet.serving.frontend.proto import serving, tensors
from support.sandbox import Sandbox, wait_for
from support.servers import BAD, HALF, THREE, Load, Server, failed_to_start, place


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of models, one of which is bad."""
    root = tmp_path_factory.mktemp("models")
    place(HALF, root, "half", 1)
    place(HALF, root, "often", 1)
    place(THREE, root, "three", 7)
    place(BAD, root, "bad", 1)
    return root


@pytest.fixture(scope="module")
def server(shared_sandbox: Sandbox, models: Path) -> Iterator[Server]:
    """One for all tests that leave it as they found it."""
    one = Server(
        shared_sandbox,
        str(models),
        *("--frontends", "2"),
        *("--file_system_poll_wait_seconds", "0.1"),
        *("--max_request", "1MiB"),
    )
    yield one
    assert one.close() == 0


EXPORT = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
from support import exports
exports.weights(pathlib.Path(sys.argv[2]), 16)
"""


def test_more_models_than_memory_are_all_answered(either_sandbox: Sandbox, tmp_path: Path) -> None:
    """Five of 16 MiB in 64 MiB: they come when they are called, and others go."""
    sandbox, models = either_sandbox, tmp_path / "models"
    export = str(sandbox.write("export.py", EXPORT))
    first, tests = models / "m0" / "1", Path(__file__).parents[1]
    first.parent.mkdir(parents=True)
    sandbox.sublet("run", "-q", "--device", "cpu", export, str(tests), str(first), check=True)
    names = ["m0", *(f"m{number}" for number in range(1, 5))]
    for name in names[1:]:
        place(first, models, name, 1)
    server = Server(sandbox, str(models), "--memory", "64MiB")
    try:
        (lease,) = sandbox.status()["leases"]
        assert (lease["device"], lease["lease"]) == (sandbox.device, 64 << 20)
        for name in 2 * names:
            status, answer = server.predict(name, [[2.0, 3.0]])
            assert (status, len(answer["predictions"])) == (200, 1)
        lines = server.text("/monitoring/prometheus/metrics").splitlines()
        evicted = [line for line in lines if line.startswith("sublet_model_evictions_total{")]
        assert sum(float(line.split()[-1]) for line in evicted) >= 5
    finally:
        assert server.close() == 0


def test_it_is_ready_when_every_model_was_loaded_or_refused(server: Server) -> None:
    answer = {one["model"]: one for one in server.facts["models"]}
    assert {name: one["state"] for name, one in answer.items()} == {
        "half": "AVAILABLE",
        "often": "AVAILABLE",
        "three": "AVAILABLE",
        "bad": "END",
    }
    assert answer["bad"]["error"]


def test_it_says_only_what_concerns_its_user(server: Server) -> None:
    """Nothing of what TensorFlow writes whenever it starts."""
    assert all(line.startswith(("sublet: ", " ")) for line in server.errors), server.errors


@pytest.mark.parametrize("batching", [True, False])
def test_many_clients_with_large_requests_are_all_answered_by_default(
    request: pytest.FixtureRequest, shared_sandbox: Sandbox, models: Path, batching: bool
) -> None:
    """64 connections over REST and 50 callers over gRPC, of 64 rows each, at the same time."""
    if batching:
        own = request.getfixturevalue("server")
    else:
        own = Server(shared_sandbox, str(models), "--enable_batching=false")
        request.addfinalizer(own.close)
    with (
        Load(own, "half", [2.5], clients=64, rows=64) as load,
        grpc.insecure_channel(own.grpc) as channel,
        ThreadPoolExecutor(50) as callers,
    ):
        message = serving("PredictRequest")(model_spec={"name": "half"})
        message.inputs["x"].ParseFromString(tensors.write(np.ones(64, np.float32)))
        predict = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        answers = callers.map(lambda _: predict(message.SerializeToString()), range(1000))
        assert len({len(answer) for answer in answers}) == 1
    assert load.wrong == []
    assert load.calls >= 64


@pytest.mark.every_python
def test_models_are_called_by_name_and_version(server: Server) -> None:
    assert server.predict("half", [1.0, 2.0, 5.0]) == (200, {"predictions": [2.5, 3.0, 4.5]})
    assert server.predict("three", [1.0], "/versions/7") == (200, {"predictions": [3.5]})
    assert server.predict("three", [1.0], "/versions/8")[0] == 404


def test_a_bad_model_stays_out_and_says_why(server: Server) -> None:
    assert server.predict("bad", [1.0])[0] == 404
    (status,) = server.get("/v1/models/bad")[1]["model_version_status"]
    assert status["state"] == "END"
    assert status["status"]["error_code"] != "OK"
    assert status["status"]["error_message"]


def test_versions_are_replaced_under_load_without_a_failed_request(
    server: Server, models: Path
) -> None:
    with Load(server, "often", [2.5, 3.5]) as load:
        for number in range(2, 8):
            place(THREE if number % 2 else HALF, models, "often", number)
            wait_for(
                lambda n=number: server.states("often").get(n) == "AVAILABLE",  # type: ignore[misc]
                f"version {number} is there",
            )
        wait_for(lambda: server.states("often").get(6) == "END", "the last but one is gone")
    assert not load.wrong
    assert server.predict("often", [1.0]) == (200, {"predictions": [3.5]})
    for said in ("often version 7 is served now.", "often version 6 is not served any more."):
        wait_for(lambda said=said: f"sublet: {said}\n" in server.errors, said)  # type: ignore[misc]


def test_a_model_that_comes_into_the_directory_is_served_and_one_that_goes_is_not(
    server: Server, models: Path
) -> None:
    place(HALF, models, "guest", 3)
    wait_for(lambda: server.predict("guest", [1.0])[0] == 200, "the guest is served")
    (models / "guest").rename(models / "guest.tmp")
    wait_for(lambda: server.get("/v1/models/guest")[0] == 404, "the guest is gone")


def test_a_version_that_is_a_link_out_of_its_model_is_not_served_and_says_so(
    server: Server, models: Path, tmp_path: Path
) -> None:
    place(HALF, tmp_path, "elsewhere", 1)
    (models / "linked").mkdir()
    (models / "linked" / "1").symlink_to(tmp_path / "elsewhere" / "1")
    try:
        wait_for(lambda: server.states("linked") == {1: "END"}, "it is refused")
        (status,) = server.get("/v1/models/linked")[1]["model_version_status"]
        assert status["status"]["error_code"] == "PERMISSION_DENIED"
        assert status["status"]["error_message"].startswith("linked/1 is a link that leads out")
        assert any(f"{models}/linked/1 is a link" in line for line in server.errors)
    finally:
        (models / "linked").rename(models / "linked.tmp")
        wait_for(lambda: server.get("/v1/models/linked")[0] == 404, "it is gone")


def test_requests_of_all_front_ends_are_counted_together(server: Server) -> None:
    name = ':tensorflow:serving:request_count{model_name="three",status="OK"}'

    def counted() -> int:
        text = server.text("/monitoring/prometheus/metrics")
        lines = [line for line in text.splitlines() if line.startswith(name)]
        return int(lines[0].rpartition(" ")[2]) if lines else 0

    before = counted()
    for _ in range(12):
        assert server.predict("three", [1.0])[0] == 200
    # A front end that is slow to say what it has counted is not waited for.
    wait_for(lambda: counted() >= before + 12, "all are counted")
    assert counted() == before + 12


def test_a_request_beyond_the_limit_is_refused_by_both_protocols(server: Server) -> None:
    status, answer = server.predict("half", ["x" * 2**20])
    assert (status, answer) == (413, {"error": "The body is larger than 1048576 bytes."})
    with grpc.insecure_channel(server.grpc) as channel:
        predict = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        with pytest.raises(grpc.RpcError, match=r"larger than max .* vs. 1048576"):
            predict(bytes(2**20 + 1), timeout=60)


def test_models_are_listed_with_their_memory_and_use(server: Server) -> None:
    rows = json.loads(server.sandbox.sublet("models", "--json", check=True).stdout)["models"]
    assert {(row["model"], row["version"]) for row in rows} >= {("half", 1), ("three", 7)}
    table = server.sandbox.sublet("models", check=True).stdout
    assert "three" in table
    assert max(map(len, table.splitlines())) <= 80


def test_the_engine_is_a_job_among_others(server: Server) -> None:
    names = [row["name"] for row in server.sandbox.status()["leases"]]
    assert "serve: 4 models" in names


def test_what_cannot_be_served_is_said_and_nothing_is_left(
    sandbox: Sandbox, server: Server
) -> None:
    port = server.facts["rest"].rpartition(":")[2]
    before = sandbox.processes().keys()
    wrong = sandbox.write("wrong.config", "improperly formatted file")
    half = str(HALF.parent)
    for words, said in (
        ([half, "--rest_api_port", port, "--port", "auto"], f"127.0.0.1:{port} is in use."),
        ([half, "--host", "no.such.host.invalid"], "--host no.such.host.invalid"),
        (["gone"], "gone: there is no such file or directory."),
        (["--model_config_file", str(wrong)], "wrong.config, line 1"),
        ([half, "--memory", "900GiB", "--port", "auto", "--rest_api_port", "0"], "900 GiB"),
    ):
        assert said in failed_to_start(sandbox, *words)
    wait_for(lambda: not sandbox.processes().keys() - before, "nothing is left")


def test_a_model_may_come_later_and_a_socket_may_be_another_servers(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """As with tensorflow_model_server; the model's name is `default`, as there."""
    path = tmp_path / "grpc.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        words = (f"--model_base_path={tmp_path}/coming", f"--grpc_socket_path={path}")
        server = Server(sandbox, *words, "--file_system_poll_wait_seconds=0.1")
        try:
            assert any("Could not find base path" in line for line in server.errors)
            assert server.predict("default", [1.0])[0] == 404
            place(HALF, tmp_path, "coming", 1)
            wait_for(lambda: server.predict("default", [1.0])[0] == 200, "the model is there")
            with grpc.insecure_channel(f"unix:{path}") as channel:
                grpc.channel_ready_future(channel).result(60)
            path.unlink()
            other.close()
            with socket.socket(socket.AF_UNIX) as next_one:
                next_one.bind(str(path))
                assert server.close() == 0
                assert path.exists()  # It belongs to somebody else.
        finally:
            if not server.draining:
                server.close()
