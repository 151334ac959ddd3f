"""Tensors in shared memory, with Triton's own clients, and who may name which memory."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tritonclient import http
from tritonclient.utils import InferenceServerException, shared_memory

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.serving.frontend.peer import Peer
from sublet.serving.frontend.shared_memory import ClientMemory, Regions
from support.grpc_server import served
from support.rest_server import rest_server
from support.strangers import as_stranger, needs_root

grpc = pytest.importorskip("tritonclient.grpc", exc_type=ImportError)
"""Not every release of it goes with the protobuf of every TensorFlow."""
X = np.array([[1], [2], [5]], np.float32)
ME = os.geteuid()
OTHER = 4242


@pytest.fixture
def key() -> Iterator[str]:
    """The name of 64 bytes of our own memory."""
    name = f"/sublet-test-{os.getpid()}"
    path = Path(f"/dev/shm{name}")
    path.write_bytes(bytes(64))
    path.chmod(0o600)
    yield name
    path.unlink(missing_ok=True)


@contextmanager
def over_http(folder: Path, regions: Regions | None) -> Iterator[tuple[ModuleType, str, str]]:
    with rest_server(regions=regions) as server:
        yield http, f"{server.where[0]}:{server.where[1]}", "half_plus_two"


@contextmanager
def over_grpc(folder: Path, regions: Regions | None) -> Iterator[tuple[ModuleType, str, str]]:
    with served(folder, regions=regions) as server:
        yield grpc, server.address, "half"


BOTH = pytest.mark.parametrize("over", [over_http, over_grpc])


def _plain(status: Any) -> list[dict[str, Any]]:
    """What a status says, over either protocol."""
    if isinstance(status, list):
        return status
    found = [status.regions[name] for name in sorted(status.regions)]
    return [
        {"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size} for r in found
    ]


@BOTH
def test_tritons_clients_leave_inputs_and_find_outputs_there(
    over: Callable[..., Any], tmp_path: Path, key: str
) -> None:
    with (
        over(tmp_path, Regions()) as (triton, address, model),
        triton.InferenceServerClient(address) as client,
    ):
        assert "system_shared_memory" in str(client.get_server_metadata())
        memory = shared_memory.create_shared_memory_region("r", key, 64)
        try:
            shared_memory.set_shared_memory_region(memory, [X], offset=8)
            client.register_system_shared_memory("r", key, 56, offset=8)
            known = {"name": "r", "key": key, "offset": 8, "byte_size": 56}
            assert _plain(client.get_system_shared_memory_status()) == [known]
            assert _plain(client.get_system_shared_memory_status("r")) == [known]
            x = triton.InferInput("x", list(X.shape), "FP32")
            x.set_shared_memory("r", X.nbytes)
            y = triton.InferRequestedOutput("y")
            y.set_shared_memory("r", 24, offset=16)
            answer = client.infer(model, [x], outputs=[y])
            found = shared_memory.get_contents_as_numpy(memory, np.float32, (3, 1), 8 + 16)
            assert found.tolist() == (X / 2 + 2).tolist()
            told = str(answer.get_output("y"))
            assert all(word in told for word in ("shared_memory_region", "12", "16"))
            # One there and one in the answer.
            plain = client.infer(model, [x], outputs=[triton.InferRequestedOutput("y")])
            assert plain.as_numpy("y").tolist() == found.tolist()
            y.set_shared_memory("r", 8)
            with pytest.raises(InferenceServerException, match="has 12 bytes, and its place"):
                client.infer(model, [x], outputs=[y])
            client.unregister_system_shared_memory("r")
            assert _plain(client.get_system_shared_memory_status()) == []
            with pytest.raises(InferenceServerException, match="no shared memory region r"):
                client.infer(model, [x])
        finally:
            shared_memory.destroy_shared_memory_region(memory)


@BOTH
def test_without_the_flag_nothing_of_it_is_done(
    over: Callable[..., Any], tmp_path: Path, key: str
) -> None:
    with (
        over(tmp_path, None) as (triton, address, model),
        triton.InferenceServerClient(address) as client,
    ):
        assert "system_shared_memory" not in str(client.get_server_metadata())
        given = triton.InferInput("x", [1, 1], "FP32")
        given.set_shared_memory("r", 4)
        full = triton.InferInput("x", [1, 1], "FP32")
        full.set_data_from_numpy(X[:1])
        output = triton.InferRequestedOutput("y")
        output.set_shared_memory("r", 4)
        acts: list[Callable[[], Any]] = [
            lambda: client.register_system_shared_memory("r", key, 4),
            lambda: client.get_system_shared_memory_status(),
            lambda: client.unregister_system_shared_memory(),
            lambda: client.infer(model, [given]),
            lambda: client.infer(model, [full], outputs=[output]),
        ]
        for act in acts:
            with pytest.raises(InferenceServerException, match=r"sublet\.connect") as wrong:
                act()
            assert wrong.value.status() in ("501", "StatusCode.UNIMPLEMENTED")


def _refused(act: Callable[[], object]) -> Code:
    with pytest.raises(ServingError) as wrong:
        act()
    return Code(wrong.value.code)


@needs_root
def test_nobody_names_the_memory_of_another_user(key: str) -> None:
    path, regions = Path(f"/dev/shm{key}"), Regions()
    # The server could read and write it: it is the user that counts.
    assert _refused(lambda: regions.register(OTHER, "r", key, 0, 64)) is Code.NOT_FOUND
    os.chown(path, OTHER, OTHER)
    assert _refused(lambda: regions.register(ME, "r", key, 0, 64)) is Code.NOT_FOUND
    regions.register(OTHER, "r", key, 0, 64)
    asked = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
    assert ClientMemory(regions, OTHER).place(asked) is not None
    assert _refused(lambda: ClientMemory(regions, ME).place(asked)) is Code.NOT_FOUND
    assert regions.registered(ME, "") == []
    regions.unregister(ME, "")
    assert len(regions.registered(OTHER, "")) == 1


@pytest.mark.parametrize(
    "name", ["", "/", "..", "/../etc/passwd", "a/b", "\0", "\ud800", "x" * 999]
)
def test_what_is_no_file_there_is_not_opened(name: str) -> None:
    assert _refused(lambda: Regions().register(ME, "r", name, 0, 1)) is Code.NOT_FOUND


def test_links_and_pipes_are_not_opened(key: str, tmp_path: Path) -> None:
    path = Path(f"/dev/shm{key}")
    path.unlink()
    (tmp_path / "secret").write_bytes(bytes(64))
    path.symlink_to(tmp_path / "secret")
    assert _refused(lambda: Regions().register(ME, "r", key, 0, 1)) is Code.NOT_FOUND
    path.unlink()
    os.mkfifo(path)
    assert _refused(lambda: Regions().register(ME, "r", key, 0, 1)) is Code.NOT_FOUND


def test_memory_that_becomes_shorter_is_an_error_and_no_end(key: str) -> None:
    regions = Regions()
    memory = ClientMemory(regions, ME)
    for offset, size in ((0, 65), (60, 5), (-1, 4), (0, 0), (2**63, 4), (0, 2**63)):
        assert _refused(lambda: regions.register(ME, "r", key, offset, size))  # noqa: B023
    regions.register(ME, "r", key, 0, 64)
    assert _refused(lambda: regions.register(ME, "r", key, 0, 64)) is Code.ALREADY_EXISTS
    asked = {"shared_memory_region": "r", "shared_memory_byte_size": 64}
    place = memory.place(asked)
    assert place is not None
    os.truncate(f"/dev/shm{key}", 16)
    room = bytearray(64)
    for act in (
        lambda: memory.read(asked, lambda size: memoryview(room)),
        lambda: place.write("y", bytes(64)),
        lambda: memory.place(asked | {"shared_memory_offset": 1}),
        lambda: memory.place(asked | {"shared_memory_byte_size": 65}),
        lambda: memory.place(asked | {"shared_memory_byte_size": "4"}),
        lambda: memory.place({"shared_memory_region": ["r"], "shared_memory_byte_size": 4}),
    ):
        assert _refused(act) is Code.INVALID_ARGUMENT
    assert os.stat(f"/dev/shm{key}").st_size == 16


def test_regions_are_bounded_and_leave_no_descriptors(key: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    regions = Regions()
    for number in range(256):
        regions.register(ME, f"r{number}", key, 0, 1)
    full = _refused(lambda: regions.register(ME, "more", key, 0, 1))
    assert full is Code.RESOURCE_EXHAUSTED
    assert _refused(lambda: regions.register(ME, "r0", "nothing", 0, 1)) is Code.ALREADY_EXISTS
    regions.unregister(ME, "")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_a_client_on_this_machine_is_known_by_its_user(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        both = "ffff" in address
        listener = socket.create_server(
            ("" if both else address, 0), family=family, dualstack_ipv6=both
        )
    except OSError:
        pytest.skip("no IPv6 here")
    with listener:
        where = ("127.0.0.1" if "ffff" in address else address, listener.getsockname()[1])
        with socket.create_connection(where), listener.accept()[0] as accepted:
            peer = Peer.of(accepted)
            assert (peer.owner, peer.user()) == (False, ME)


@needs_root
def test_a_user_that_nobody_knows_has_no_regions(tmp_path: Path, key: str) -> None:
    request = f'{{"key": "{key}", "byte_size": 64}}'.encode()
    path = "/v2/systemsharedmemory/region/r/register"
    with rest_server(regions=Regions()) as server:
        with server.client() as client:
            assert client.ask("POST", path, request).status == 200

        def attack() -> tuple[int, int]:
            with server.client() as stranger:
                first = stranger.ask("POST", path, request).status
                return first, stranger.ask("GET", "/v2/systemsharedmemory/status").status

        assert as_stranger(attack) == (403, 403)
