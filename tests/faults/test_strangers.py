"""Another user of the machine: whoever reaches a port may call models, and nothing else.

The server runs as the tests' user, with default settings, and the stranger as another one.
"""

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from sublet.channel import async_client, records
from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.serving.frontend.proto import inference, serving
from support.h2client import POST, Client
from support.queue import reached, row
from support.sandbox import Sandbox, wait_for
from support.servers import BAD, HALF, MODELS, Server, place
from support.strangers import GID, UID, as_stranger, needs_root

pytestmark = needs_root
RELOAD = b"/tensorflow.serving.ModelService/HandleReloadConfigRequest"
READER = MODELS.parent / "models" / "reader"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    place(HALF, root, "half", 1)
    place(BAD, root, "bad", 1)
    return root


@pytest.fixture(scope="module")
def server(shared_sandbox: Sandbox, models: Path) -> Iterator[Server]:
    one = Server(shared_sandbox, str(models))
    yield one
    assert one.close() == 0


@pytest.fixture
def reader() -> Iterator[Path]:
    """A model of the stranger's, which reads any file, in a directory of the stranger's."""
    with TemporaryDirectory(prefix="sublet-stranger-") as folder:
        path = Path(folder) / "reader"
        shutil.copytree(READER, path)
        for one in (Path(folder), path, *path.rglob("*")):
            os.chown(one, UID, GID)
        yield path


def ask(server: Server, path: bytes, request: Any) -> tuple[int, str]:
    """A gRPC call to the server's port; how it ends."""
    heads = tuple((name, path if name == b":path" else value) for name, value in POST)
    data = request.SerializeToString()
    with Client(int(server.grpc.rpartition(":")[2])) as client:
        client.headers(1, heads)
        client.data(1, b"\0" + len(data).to_bytes(4, "big") + data)
        return client.status(1)


def test_a_stranger_cannot_have_its_own_model_run_nor_take_others_away(
    server: Server, reader: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the owner's")
    secret.chmod(0o600)
    mine, empty = serving("ReloadConfigRequest")(), serving("ReloadConfigRequest")()
    mine.config.model_config_list.config.add(name="reader", base_path=str(reader))
    empty.config.model_config_list.SetInParent()
    load = inference("ModelReadyRequest")(name="half")

    def attack() -> Any:
        with pytest.raises(PermissionError):
            secret.read_text()
        return (
            ask(server, RELOAD, mine),
            ask(server, RELOAD, empty),
            ask(server, b"/inference.GRPCInferenceService/RepositoryModelLoad", load),
            ask(server, b"/inference.GRPCInferenceService/RepositoryModelUnload", load),
            server._speak("POST", "/v2/repository/models/half/unload", {}),
            server._speak("POST", "/v1/models/reader:predict", {"inputs": str(secret)}),
            server.predict("half", [1.0]),
        )

    first, second, load_, unload, rest, read, half = as_stranger(attack)
    assert first[0] == second[0] == Code.PERMISSION_DENIED
    assert "--allow_reload" in first[1]
    assert load_[0] == unload[0] == Code.PERMISSION_DENIED
    assert rest[0] == 403
    assert read[0] == 404
    assert half == (200, {"predictions": [2.5]})


def test_a_stranger_reads_nothing_of_a_home_or_a_process(
    new_sandbox: Callable[..., Sandbox], models: Path, tmp_path: Path
) -> None:
    token, key = "a-token-of-the-owner", "a-key-of-the-owner"
    (tmp_path / "token").write_text(token)
    (tmp_path / "token").chmod(0o600)
    sandbox = new_sandbox(API_KEY=key)
    server = Server(sandbox, str(models), "--auth_token_file", str(tmp_path / "token"))
    try:
        sandbox.sublet("submit", "--", "sleep", "600", check=True)
        reached(sandbox, 1, "running")
        sandbox.home.parent.chmod(0o755)
        files = [sandbox.home, *sandbox.home.rglob("*")]
        pids = sandbox.processes()
        assert len(pids) >= 5
        parts = ("environ", "mem", "maps", "fd", "cwd")
        secret = [*files, *(Path(f"/proc/{pid}/{part}") for pid in pids for part in parts)]

        def read() -> tuple[list[str], bytes]:
            shown = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)
            return [
                str(path) for path in secret if os.access(path, os.R_OK) and _opens(path)
            ], shown

        got, shown = as_stranger(read)
        assert got == []
        assert b"sublet" in shown
        assert token.encode() not in shown
        assert key.encode() not in shown
    finally:
        assert server.close() == 0


def _opens(path: Path) -> bool:
    """Whether it can be read: the kernel lets some files of a process be opened, and gives
    nothing."""
    try:
        if path.is_dir():
            return bool(os.listdir(path))
        with path.open("rb") as file:
            return bool(file.read(1))
    except OSError:
        return False


def test_a_stranger_learns_no_paths(server: Server, models: Path) -> None:
    def look() -> list[str]:
        paths = ("/v1/models/bad", "/v1/models/half", "/v1/models/nothing", "/v2/models/bad")
        texts = [json.dumps(server.get(path)) for path in paths]
        texts += [json.dumps(server.predict("bad", [1.0])), json.dumps(server.predict("half", []))]
        texts.append(json.dumps(server._speak("POST", "/v2/repository/index", {})))
        return [*texts, server.text("/monitoring/prometheus/metrics")]

    answer = as_stranger(look)
    assert "bad/1 holds a session bundle" in answer[0]
    for text in answer:
        assert str(models) not in text
        assert str(server.sandbox.home) not in text


def test_a_stranger_is_hung_up_on_by_engines_whatever_permissions_say(server: Server) -> None:
    engines = server.sandbox.home / "engines"
    (path,) = engines.glob(f"{server.process.pid}-*.sock")
    loosened = (server.sandbox.home.parent, server.sandbox.home, engines)
    before = [one.stat().st_mode for one in loosened]

    def reach() -> tuple[str, bytes]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(60)
            try:
                sock.connect(str(path))
            except PermissionError:
                return "no", b""
            try:
                sock.send(records.plain(records.CANCEL, call=1))
                return "yes", sock.recv(1 << 16)
            except ConnectionError:
                return "yes", b""

    assert as_stranger(reach) == ("no", b"")
    try:
        for one in loosened:
            one.chmod(0o755)
        path.chmod(0o777)
        assert as_stranger(reach) == ("yes", b"")
    finally:
        for one, mode in zip(loosened, before, strict=True):
            one.chmod(mode)
    assert server.predict("half", [1.0])[0] == 200


def test_a_strangers_socket_is_not_taken_for_an_engine() -> None:
    with TemporaryDirectory(prefix="sublet-stranger-") as folder:
        Path(folder).chmod(0o777)
        path = f"{folder}/1-a.sock"
        begun, going = os.pipe()
        child = os.fork()
        if not child:
            os.setresgid(GID, GID, GID)
            os.setresuid(UID, UID, UID)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.bind(path)
                sock.listen()
                os.close(going)
                sock.accept()
            os._exit(0)
        os.close(going)
        os.read(begun, 1)  # Until it listens.
        os.close(begun)
        with pytest.raises(ServingError, match="of another user") as wrong:
            async_client.connect(path)
        assert wrong.value.code == Code.PERMISSION_DENIED
        os.waitpid(child, 0)


def test_a_stranger_is_hung_up_on_by_keepers_and_the_broker_whatever_permissions_say(
    new_sandbox: Callable[..., Sandbox],
) -> None:
    sandbox = new_sandbox()
    sandbox.sublet("submit", "--", "sleep", "600", check=True)
    keeper = sandbox.home / "runs" / "1.1" / "keeper.sock"
    wait_for(keeper.exists, "the keeper listens")
    for one in (sandbox.home.parent, sandbox.home, keeper.parent.parent, keeper.parent):
        one.chmod(0o755)
    sockets = [(keeper, socket.SOCK_SEQPACKET), (sandbox.home / "broker.sock", socket.SOCK_STREAM)]
    for path, _ in sockets:
        path.chmod(0o777)

    def reach() -> list[bytes]:
        answer = []
        for path, kind in sockets:
            with socket.socket(socket.AF_UNIX, kind) as sock:
                sock.settimeout(60)
                sock.connect(str(path))
                try:
                    sock.send(b'{"stop": 0}')
                    answer.append(sock.recv(1 << 16))
                except ConnectionError:
                    answer.append(b"")
        return answer

    assert as_stranger(reach) == [b"", b""]
    assert row(sandbox, 1)["state"] == "running"
