"""`sublet bench` and `sublet tune` on real models, as they are typed.

Their times are short; but a call that finds no processor for a moment is not too long for them.
"""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from sublet.serving.control.config_files import read_batching
from sublet.tools.loadtest.setting import FILE
from support.sandbox import Sandbox
from support.servers import BAD, HALF, MODELS, Server, place

SHORT = ("--time", "2s")
COUNTER = MODELS / "saved_model_counter" / "00000123"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    place(HALF, root, "half", 3)
    return root


@pytest.fixture(scope="module")
def server(shared_sandbox: Sandbox, models: Path) -> Iterator[Server]:
    one = Server(shared_sandbox, str(models))
    yield one
    assert one.close() == 0


def bench(sandbox: Sandbox, *words: str) -> dict[str, Any]:
    """What `sublet bench --json` says."""
    reply = sandbox.sublet("bench", *words, *SHORT, "--json")
    assert reply.returncode == 0, reply.stderr
    return json.loads(reply.stdout)  # type: ignore[no-any-return]


def refused(sandbox: Sandbox, *words: str) -> str:
    """What a command says that cannot be carried out."""
    reply = sandbox.sublet(*words)
    assert reply.returncode == 2
    assert "Traceback" not in reply.stderr
    return str(reply.stderr)


def engines(sandbox: Sandbox) -> list[str]:
    """Those that a command has left running."""
    return [one["name"] for one in sandbox.status()["leases"] if one["name"].startswith("bench")]


def test_a_model_on_the_disk_is_measured_in_an_engine_of_its_own(
    sandbox: Sandbox, models: Path
) -> None:
    reply = sandbox.sublet(
        "bench", str(models / "half"), "-c", "1:4", *SHORT, "--csv", "a.csv", "--plot", "a.svg"
    )
    assert reply.returncode == 0, reply.stderr
    assert "half, version 3, in an engine of its own" in reply.stdout
    assert "serving_default: x float32 1,1" in reply.stdout
    assert max(map(len, reply.stdout.splitlines())) <= 85
    steps = [line.split(",")[0] for line in (sandbox.work / "a.csv").read_text().splitlines()]
    assert steps == ["concurrency", "1", "2", "4"]
    assert ElementTree.parse(sandbox.work / "a.svg").getroot().tag.endswith("svg")
    assert engines(sandbox) == []


def test_calls_at_the_same_time_share_batches_and_the_times_add_up(
    sandbox: Sandbox, models: Path
) -> None:
    reply = bench(sandbox, str(models / "half"), "-c", "8", "--rows", "2")
    (step,) = reply["figures"]
    assert reply["complete"]
    assert reply["rows"] == 2
    assert 2 <= step["batch"] <= 16
    assert step["rows"] == pytest.approx(2 * step["rate"])
    assert 0 < step["p50"] <= step["p95"] <= step["p99"]
    assert 0 < step["queued"] + step["computed"] <= step["mean"]
    assert step["failed"] == 0


def test_real_inputs_and_batching_parameters_are_read_from_files(
    sandbox: Sandbox, models: Path
) -> None:
    np.savez(sandbox.work / "real.npz", x=np.ones((6, 1), np.float32))
    sandbox.write("own.config", "max_batch_size { value: 2 }")
    own = ("--batching", "own.config", "--data", "real.npz", "--rows", "2")
    reply = bench(sandbox, str(models / "half"), "-c", "8", *own)
    assert reply["inputs"] == {"x": "float32 2,1"}
    assert reply["figures"][0]["batch"] == 2


def test_a_served_model_is_measured_by_its_name_through_rest_and_through_grpc(
    sandbox: Sandbox, server: Server
) -> None:
    through_channel = bench(sandbox, "half", "-c", "2")
    assert through_channel["version"] == 3
    assert through_channel["figures"][0]["batch"] >= 1
    for way in (("--url", server.facts["rest"]), ("--grpc", server.grpc)):
        reply = bench(sandbox, "half", "-c", "2", *way)
        assert reply["figures"][0]["requests"] > 0
        assert reply["figures"][0]["failed"] == 0
        assert reply["figures"][0]["queued"] is None
        missing = sandbox.sublet("bench", "nobody", *way)
        assert (missing.returncode, "not found" in missing.stderr) == (2, True)
    assert "is served here, only: half" in sandbox.sublet("bench", "nobody").stderr


def test_an_interrupt_shows_what_was_measured_so_far(sandbox: Sandbox, models: Path) -> None:
    child = sandbox.start("bench", str(models / "half"), "-c", "1:64", "--time", "8s")
    assert child.stdout is not None
    seen = ""
    while not seen.rpartition("─")[2].strip().startswith("1"):
        line = child.stdout.readline()
        assert line, seen
        seen += line
    child.send_signal(signal.SIGINT)
    rest, errors = child.communicate(timeout=60)
    assert child.returncode == -signal.SIGINT, errors
    assert "requests per second" in rest
    assert "Traceback" not in errors
    assert engines(sandbox) == []


def test_a_model_that_cannot_be_loaded_or_called_says_why_and_leaves_nothing_running(
    sandbox: Sandbox,
) -> None:
    assert "bad_half_plus_two" in refused(sandbox, "bench", str(BAD.parent))
    assert "Feature: x" in refused(sandbox, "bench", str(HALF), "--signature", "regress_x_to_y")
    assert "does not answer" in refused(sandbox, "bench", "half", "--url", "http://127.0.0.1:9")
    assert engines(sandbox) == []


def test_tune_says_what_each_setting_gave_and_writes_only_what_it_suggests(
    sandbox: Sandbox, models: Path
) -> None:
    reply = sandbox.sublet(
        "tune", str(models / "half"), "-c", "4", "--time", "1s", "--json", "-o", "best.config"
    )
    assert reply.returncode == 0, reply.stderr
    found = json.loads(reply.stdout)
    settings = [trial["setting"] for trial in found["trials"]]
    assert settings[0] == {"largest": 64, "micros": 0, "padded": False}
    assert len(settings) >= 3
    assert all(trial["figures"]["requests"] for trial in found["trials"])
    written = sandbox.work / "best.config"
    assert written.exists() == (found["suggested"] is not None)
    if written.exists():
        assert read_batching(written.read_text())["max_batch_size"] == found["best"]["largest"]


def test_tune_refuses_before_it_measures_what_it_could_not_finish(sandbox: Sandbox) -> None:
    own = sandbox.work / "model" / "1"
    shutil.copytree(HALF, own)
    (own / FILE).write_text("max_batch_size { value: 3 }")
    assert f"{FILE} is there already" in refused(sandbox, "tune", "model")
    assert (own / FILE).read_text() == "max_batch_size { value: 3 }"
    assert "is not changed to be measured" in refused(sandbox, "tune", "half")
    assert "has no batch dimension" in refused(
        sandbox, "tune", str(COUNTER), "--signature", "get_counter", "-o", "x.config"
    )
    assert engines(sandbox) == []


def test_help_loads_nothing_that_takes_long(sandbox: Sandbox) -> None:
    program = (
        "import sys\nfrom sublet.cli import bench, tune\n"
        "print({'numpy', 'grpc', 'httptools', 'tensorflow'} & set(sys.modules))"
    )
    reply = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (reply.stdout.strip(), reply.stderr) == ("set()", "")


def test_a_server_that_asks_for_a_token_is_measured_with_one(
    sandbox: Sandbox, models: Path, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    guarded = Server(sandbox, str(models), "--auth_token_file", str(token))
    try:
        for words in (("--url", guarded.facts["rest"]), ("--grpc", guarded.grpc)):
            assert "asks for a token" in refused(sandbox, "bench", "half", *words)
            reply = bench(sandbox, "half", *words, "--auth_token_file", str(token), "-c", "2")
            assert reply["figures"][0]["failed"] == 0
    finally:
        assert guarded.close() == 0
    assert "is for --url" in refused(sandbox, "bench", "half", "--auth_token_file", str(token))
