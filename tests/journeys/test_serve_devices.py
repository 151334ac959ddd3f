"""`sublet serve` on several devices: each model has its place, moves without a gap, and is found.

Two engines on the CPU stand for two devices; which card an engine gets is tried in `test_gpu`.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sublet.channel.async_client import connect
from sublet.channel.sync_client import SyncClient
from support.sandbox import Sandbox, wait_for
from support.servers import ENDLESS, HALF, THREE, Load, Server, failed_to_start, place

TWO = ("--device", "cpu,cpu")
NAMES = ("cpu#1", "cpu#2")
AT_FIRST = [{"cpu#1"}, {"cpu#2"}, {*NAMES}]
CLIENT = """
import sublet
model = sublet.connect("half")
calls = 0
while True:
    assert model([1.0]).tolist() == [2.5]
    calls += 1
    if calls % 20 == 0: print(calls, flush=True)
"""


class Shelf:
    """A config file that a server reads again and again, and the models in it."""

    def __init__(self, root: Path) -> None:
        self.file = root / "models.config"
        for name in ("half", "three", "twice", "late"):
            place(THREE if name == "three" else HALF, root, name, 1)

    def write(self, **sharing: str) -> None:
        """Serve these models, with this in their `sharing`."""
        models = "".join(
            f'config {{ name: "{name}" base_path: "{name}" sharing {{ {text} }} }}\n'
            for name, text in sharing.items()
        )
        draft = self.file.with_suffix(".draft")
        draft.write_text(f"model_config_list {{ {models} }}")
        draft.rename(self.file)


class Calling:
    """A program that calls `half` through shared memory until the dedent, or until a call fails."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._lines: list[str] = []
        program = sandbox.write("client.py", CLIENT)
        self._process = subprocess.Popen(
            [sys.executable, str(program)],
            env=sandbox.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reading = threading.Thread(target=self._read)

    def __enter__(self) -> "Calling":
        self._reading.start()
        self.go_on()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._reading.join()
        self._process.communicate()

    def go_on(self) -> None:
        """Wait until more calls were answered."""
        enough = len(self._lines) + 3
        wait_for(
            lambda: len(self._lines) >= enough or self._process.poll() is not None,
            "calls are answered",
        )
        assert self._process.poll() is None, self._process.communicate()[1]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("shelf"))


@pytest.fixture(scope="module")
def running(shared_sandbox: Sandbox, shelf: Shelf) -> Iterator[Server]:
    shelf.write(half="", three="", twice="replicas: 2")
    poll = ("--model_config_file_poll_wait_seconds", "0.1", "--file_system_poll_wait_seconds", "1")
    isolate = ("--isolate", "late=900GiB")
    one = Server(shared_sandbox, "--model_config_file", str(shelf.file), *TWO, *poll, *isolate)
    yield one
    assert one.close() == 0


@pytest.fixture
def server(running: Server, shelf: Shelf) -> Server:
    """With a model on each device, and one on both."""
    shelf.write(half='device: "cpu#1"', three='device: "cpu#2"', twice="replicas: 2")
    wait_for(lambda: on(running, "half", "three", "twice") == AT_FIRST, "all are there")
    return running


def on(server: Server, *names: str) -> list[set[str]]:
    """The devices of each model, as its status tells them."""
    answer = [server.get(f"/v1/models/{n}")[1].get("model_version_status", ()) for n in names]
    return [{device for version in one for device in version.get("devices", ())} for one in answer]


def engine(server: Server, name: str) -> int:
    """The process that has this model, and is the only one."""
    rows = json.loads(server.sandbox.sublet("models", "--json", check=True).stdout)["models"]
    (stem,) = [row["engine"] for row in rows if row["model"] == name]
    client = SyncClient(connect(str(server.sandbox.home / "engines" / f"{stem}.sock")))
    try:
        return int(client.ask({"ask": "hello"})["pid"])
    finally:
        client.close()


def test_models_are_placed_over_the_devices_and_everybody_says_where(running: Server) -> None:
    answer = {one["model"]: one["devices"] for one in running.facts["models"]}
    assert sorted([*answer["half"], *answer["three"]]) == list(NAMES)
    assert sorted(answer["twice"]) == list(NAMES)
    assert on(running, *answer) == [set(where) for where in answer.values()]
    metrics = running.text("/monitoring/prometheus/metrics").splitlines()
    rows = [line for line in metrics if line.startswith("sublet_model_memory_bytes")]
    assert len([row for row in rows if 'model_name="twice"' in row]) == 2
    assert any(f'"half",version="1",device="{answer["half"][0]}"' in row for row in rows)
    leases = [row for row in running.sandbox.status()["leases"] if row["name"] == "serve: 2 models"]
    assert len(leases) == 2


def test_a_model_is_moved_without_a_failed_request(server: Server, shelf: Shelf) -> None:
    with Load(server, "half", [2.5], clients=2) as load, Calling(server.sandbox) as calling:
        for where in ("cpu#2", "cpu#1"):
            shelf.write(half=f'device: "{where}"', three="", twice="replicas: 2")
            wait_for(lambda w=where: on(server, "half") == [{w}], f"it is on {where}")  # type: ignore[misc]
            calling.go_on()
    assert load.calls
    assert not load.wrong
    assert on(server, "three", "twice") == [{"cpu#2"}, {*NAMES}]


def test_a_killed_engine_costs_only_its_own_models_and_replicas_are_served_on(
    server: Server,
) -> None:
    with Load(server, "three", [3.5], clients=2) as load:
        os.kill(engine(server, "half"), signal.SIGKILL)
        wait_for(lambda: server.predict("half", [1.0])[0] == 503, "its callers are told")
        assert server.predict("twice", [1.0]) == (200, {"predictions": [2.5]})
        wait_for(lambda: server.predict("half", [1.0])[0] == 200, "it is back")
    assert load.calls
    assert not load.wrong
    assert on(server, "half", "twice") == [{"cpu#1"}, {*NAMES}]


def test_an_engine_that_no_model_is_placed_on_gives_its_lease_back(
    server: Server, shelf: Shelf
) -> None:
    def leases() -> int:
        return len([row for row in server.sandbox.status()["leases"] if "serve: " in row["name"]])

    assert leases() == 2
    shelf.write(half='device: "cpu#2"', three='device: "cpu#2"')
    wait_for(lambda: leases() == 1, "one is left")
    assert on(server, "half", "three") == [{"cpu#2"}, {"cpu#2"}]
    assert server.predict("half", [1.0]) == (200, {"predictions": [2.5]})


def test_a_model_whose_engine_no_device_has_room_for_fails_alone_and_says_so(
    server: Server, shelf: Shelf
) -> None:
    with Load(server, "half", [2.5], clients=1) as load:
        shelf.write(half="", three="", twice="replicas: 2", late="")
        wait_for(lambda: server.states("late") == {1: "END"}, "it has failed")
    (status,) = server.get("/v1/models/late")[1]["model_version_status"]
    assert "900 GiB will never fit on cpu" in status["status"]["error_message"]
    assert load.calls
    assert not load.wrong


@pytest.mark.parametrize(
    ("sharing", "said"),
    [
        ('device: "gpu0"', "'gpu0', which this server does not use; it has: cpu#1, cpu#2."),
        ("replicas: 3", "is to have 3 replicas, and may be on cpu#1, cpu#2 only."),
    ],
)
def test_a_config_that_cannot_be_met_is_refused_and_changes_nothing(
    server: Server, shelf: Shelf, sharing: str, said: str
) -> None:
    shelf.write(half=sharing, three='device: "cpu#1"')
    wait_for(lambda: said in "".join(server.errors), "it is said")
    assert on(server, "half", "three", "twice") == AT_FIRST


def test_models_that_are_larger_than_every_device_are_named_before_it_serves(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    for name in ("half", "large"):
        place(HALF, tmp_path, name, 1)
    with (tmp_path / "large" / "1" / "more").open("wb") as file:
        file.truncate(100 << 30)
    said = " ".join(failed_to_start(sandbox, str(tmp_path), *TWO).split())
    assert "The models for cpu#1 need about 205057MiB." in said
    assert "Say --memory" in said


def test_a_signal_ends_it_while_one_of_its_engines_still_loads(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    place(ENDLESS, tmp_path, "endless", 1)
    place(HALF, tmp_path, "half", 1)
    server = Server(sandbox, str(tmp_path), *TWO, ready=False)
    wait_for(
        lambda: any("loading" in row["state"] for row in models(sandbox)),
        "one loads",
    )
    server.signal(signal.SIGTERM)
    assert server.close() == 128 + signal.SIGTERM


def models(sandbox: Sandbox) -> list[dict[str, str]]:
    answer = sandbox.sublet("models", "--json", check=True)
    return json.loads(answer.stdout)["models"]  # type: ignore[no-any-return]


def test_a_model_that_waits_for_room_elsewhere_is_served_on_and_can_be_called_back(
    new_sandbox: Callable[..., Sandbox], tmp_path: Path
) -> None:
    """One engine fills the device, so that there is no room for a second one."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="2GiB")
    shelf = Shelf(tmp_path)
    shelf.write(half='device: "cpu#1"')
    poll = ("--model_config_file_poll_wait_seconds", "0.1", "--file_system_poll_wait_seconds", "1")
    words = ("--model_config_file", str(shelf.file), *TWO, *poll, "--memory", "1GiB")
    server = Server(sandbox, *words)
    try:
        with Load(server, "half", [2.5], clients=1) as load:
            shelf.write(half='device: "cpu#2"')
            wait_for(lambda: sandbox.status()["waiting"], "another engine waits")
            shelf.write(half='device: "cpu#1"', three='device: "cpu#1"')
            wait_for(lambda: server.states("three") == {1: "AVAILABLE"}, "others are served")
            wait_for(lambda: not sandbox.status()["waiting"], "nobody waits any more")
        assert on(server, "half", "three") == [{"cpu#1"}, {"cpu#1"}]
        assert load.calls
        assert not load.wrong
    finally:
        assert server.close() == 0
