"""gRPC with tokens: who is let in, and what is open to all."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from sublet.channel.codes import Code
from sublet.serving.access import Access
from sublet.serving.frontend.proto import inference, message, serving
from support.grpc_server import Served, served
from support.h2client import POST, Client
from support.strangers import as_stranger, needs_root

CALLER, ADMIN = "caller-0123456789", "admin-0123456789"
ACCESS = Access(
    callers=(sha256(CALLER.encode()).digest(),),
    reloaders=(sha256(ADMIN.encode()).digest(),),
    reload=True,
)
RELOAD = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
LOAD = "/inference.GRPCInferenceService/RepositoryModelLoad"
UNLOAD = "/inference.GRPCInferenceService/RepositoryModelUnload"
OPEN = (
    ("/grpc.health.v1.Health/Check", message("grpc.health.v1.HealthCheckRequest")()),
    ("/inference.GRPCInferenceService/ServerLive", inference("ServerLiveRequest")()),
    ("/inference.GRPCInferenceService/ServerReady", inference("ServerReadyRequest")()),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("grpc"), access=ACCESS) as one:
        yield one


def status() -> Any:
    request = serving("GetModelStatusRequest")()
    request.model_spec.name = "half"
    return request


def reload() -> Any:
    request = serving("ReloadConfigRequest")()
    request.config.model_config_list.config.add(name="a", base_path="/a")
    return request


CALLS = (
    ("/tensorflow.serving.ModelService/GetModelStatus", status()),
    ("/inference.GRPCInferenceService/ModelReady", inference("ModelReadyRequest")(name="half")),
    ("/inference.GRPCInferenceService/RepositoryIndex", inference("RepositoryIndexRequest")()),
)


def ask(address: str, path: str, request: Any, token: str = "") -> StatusCode:
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with grpc.insecure_channel(address) as channel:
        try:
            call = channel.unary_unary(path)
            call(request.SerializeToString(), timeout=60, metadata=metadata)
        except grpc.RpcError as error:
            failed: Any = error
            if failed.code() is StatusCode.UNAUTHENTICATED:
                assert "authorization: Bearer TOKEN" in failed.details()
            code: StatusCode = failed.code()
            return code
    return StatusCode.OK


def test_calls_need_the_token_and_health_does_not(server: Served) -> None:
    for path, request in OPEN:
        assert ask(server.address, path, request) is StatusCode.OK
    for path, request in CALLS:
        assert ask(server.address, path, request) is StatusCode.UNAUTHENTICATED
        assert ask(server.address, path, request, "wrong" * 5) is StatusCode.UNAUTHENTICATED
        assert ask(server.address, path, request, CALLER) is StatusCode.OK
        assert ask(f"unix:{server.path}", path, request) is StatusCode.OK


def test_reloading_needs_a_token_of_its_own(server: Served) -> None:
    assert ask(server.address, RELOAD, reload()) is StatusCode.UNAUTHENTICATED
    assert ask(server.address, RELOAD, reload(), CALLER) is StatusCode.UNAUTHENTICATED
    assert ask(server.address, LOAD, status(), CALLER) is StatusCode.UNAUTHENTICATED
    assert ask(server.address, UNLOAD, status(), CALLER) is StatusCode.UNAUTHENTICATED
    assert not server.call(lambda: server.backend.reloaded or server.backend.changed)
    assert ask(server.address, RELOAD, reload(), ADMIN) is StatusCode.OK
    assert server.call(lambda: server.backend.reloaded) == ["a"]


def test_nobody_reloads_a_server_that_does_not_allow_it(tmp_path: Path) -> None:
    with served(tmp_path, access=Access(reloaders=ACCESS.reloaders)) as closed:
        for address in (closed.address, f"unix:{closed.path}"):
            assert ask(address, RELOAD, reload(), ADMIN) is StatusCode.PERMISSION_DENIED
        assert not closed.call(lambda: closed.backend.reloaded)


def test_nobody_profiles_a_server_that_does_not_allow_it(server: Served, tmp_path: Path) -> None:
    path, request = "/tensorflow.ProfilerService/Profile", message("tensorflow.ProfileRequest")()
    assert ask(server.address, path, request, ADMIN) is StatusCode.PERMISSION_DENIED
    allowing = Access(callers=ACCESS.callers, profile=True)
    with served(tmp_path, access=allowing) as one:
        assert ask(one.address, path, request) is StatusCode.UNAUTHENTICATED
        assert ask(one.address, path, request, CALLER) is StatusCode.OK


def test_who_has_no_token_is_refused_before_its_message_is_taken(server: Served) -> None:
    with Client(server.port) as client:
        client.headers(1)
        assert client.status(1)[0] == Code.UNAUTHENTICATED
        assert not server.call(lambda: server.server.streams)


@needs_root
def test_another_user_on_the_unix_socket_has_no_more_rights_than_anybody(tmp_path: Path) -> None:
    with served(tmp_path, access=Access(reload=True)) as open_:
        open_.path.chmod(0o777)
        for folder in (tmp_path, *tmp_path.parents):
            folder.chmod(folder.stat().st_mode | 0o111)
        data = reload().SerializeToString()
        heads = tuple((name, RELOAD.encode() if name == b":path" else v) for name, v in POST)

        def attack() -> int:
            with Client(str(open_.path)) as client:
                client.headers(1, heads)
                client.data(1, b"\0" + len(data).to_bytes(4, "big") + data)
                return client.status(1)[0]

        assert as_stranger(attack) == Code.UNAUTHENTICATED
        assert not open_.call(lambda: open_.backend.reloaded)
        assert attack() == 0
