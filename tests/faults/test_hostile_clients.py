"""Clients that hold what they can: the server has back what they held, and others go on."""

import contextlib
import os
import re
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from sublet.serving.frontend.grpc import frames, hpack
from sublet.serving.frontend.proto import serving, tensors
from support.h2client import POST, Client
from support.sandbox import PATIENCE, Sandbox, wait_for
from support.servers import HALF, Server, place

MiB = 1 << 20
_FRONT_END = "sublet.serving.frontend.process"
_ENGINE = "sublet.engine"
PREDICT = "/tensorflow.serving.PredictionService/Predict"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    place(HALF, root, "half", 1)
    return root


@pytest.fixture(scope="module")
def server(shared_sandbox: Sandbox, models: Path) -> Iterator[Server]:
    one = Server(shared_sandbox, str(models))
    yield one
    assert one.close() == 0


def predict(rows: int, name: str = "half", **changes: Any) -> bytes:
    asked = serving("PredictRequest")()
    asked.model_spec.name = name
    asked.model_spec.signature_name = changes.pop("signature", "")
    array = np.ones((rows, *changes.pop("more", (1,))), changes.pop("dtype", np.float32))
    tensor = asked.inputs[changes.pop("input", "x")]
    tensor.ParseFromString(tensors.write(array[:1]))
    del tensor.tensor_shape.dim[:]
    for size in changes.pop("shape", array.shape):
        tensor.tensor_shape.dim.add(size=size)
    tensor.ClearField("float_val")
    tensor.tensor_content = array.tobytes()
    data: bytes = asked.SerializeToString()
    return data


class Caller(Client):
    """Sends large messages, and hears how they end."""

    def __init__(self, server: Server) -> None:
        super().__init__(int(server.grpc.rpartition(":")[2]), greet=False)
        most = frames.LARGEST_WINDOW
        settings = frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: most})
        self.send(frames.PREFACE + settings + frames.window_update(0, most - 65535))
        self._stream = -1

    def call(self, message: bytes, timeout: bytes = b"", last: bool = True) -> int:
        self._stream += 2
        extra = ((b"grpc-timeout", timeout),) if timeout else ()
        block = hpack.encode((*POST, *extra))
        self.send(frames.frame(frames.HEADERS, frames.END_HEADERS, self._stream, block))
        data = b"\0" + len(message).to_bytes(4, "big") + message
        for at in range(0, len(data), 16384):
            piece = data[at : at + 16384]
            end = last and at + 16384 >= len(data)
            self.data(self._stream, piece, frames.END_STREAM if end else 0)
        return self._stream


def descriptors(server: Server) -> int:
    """Of the front end and the engine."""
    pids = [*server.children(_FRONT_END), *server.children(_ENGINE)]
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)


def shared(server: Server) -> int:
    """Bytes of shared memory that the front end has mapped."""
    (pid,) = server.children(_FRONT_END)
    maps = Path(f"/proc/{pid}/maps").read_text()
    found = re.findall(r"^(\w+)-(\w+) .*memfd:sublet", maps, re.MULTILINE)
    return sum(int(end, 16) - int(start, 16) for start, end in found)


BAD: dict[str, Callable[[], tuple[bytes, bytes]]] = {
    "an endless timeout": lambda: (predict(750_000), b"99999999H"),
    "a short timeout": lambda: (predict(750_000), b"1n"),
    "an unknown model": lambda: (predict(750_000, "nothing"), b""),
    "an unknown signature": lambda: (predict(750_000, signature="nothing"), b""),
    "an unknown input": lambda: (predict(750_000, input="z"), b""),
    "another type": lambda: (predict(750_000, dtype=np.int32), b"99999999H"),
    "forty dimensions": lambda: (predict(750_000, shape=(750_000, *[1] * 39)), b"99999999H"),
    "a shape that does not fit": lambda: (predict(750_000, shape=(3, 1)), b""),
    "a row too wide": lambda: (predict(2, more=(400_000,)), b"99999999H"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_calls_leave_no_memory_and_no_descriptors_behind(server: Server, what: str) -> None:
    message, timeout = BAD[what]()
    with Caller(server) as caller:
        for _ in range(3):
            caller.status(caller.call(message, timeout))
        before = descriptors(server), shared(server)
        for _ in range(60):  # One after the other, so that one piece of memory is enough.
            caller.status(caller.call(message, timeout))
        wait_for(lambda: descriptors(server) <= before[0], "the descriptors are closed")
        assert shared(server) <= before[1] + 8 * MiB
    assert server.predict("half", [1.0])[0] == 200


def test_calls_that_break_off_leave_nothing_behind(server: Server) -> None:
    message = predict(750_000)
    before = descriptors(server), shared(server)
    for number in range(60):
        with Caller(server) as caller:
            stream = caller.call(message[: 1 * MiB], last=False)
            if number % 2:
                caller.send(frames.reset(stream, frames.Fault.CANCEL))
    wait_for(lambda: descriptors(server) <= before[0], "the descriptors are closed")
    wait_for(lambda: shared(server) <= before[1] + 16 * MiB, "the memory is used again")
    assert server.predict("half", [1.0])[0] == 200


def test_answers_that_nobody_took_leave_no_memory_behind(server: Server) -> None:
    def private() -> int:
        """Bytes of memory that is the front end's alone."""
        (pid,) = server.children(_FRONT_END)
        status = Path(f"/proc/{pid}/status").read_text()
        return int(re.findall(r"RssAnon:\s+(\d+)", status)[0]) * 1024

    message = predict(1 << 20)
    with Caller(server) as caller:
        caller.status(caller.call(message))
    before = private()
    with contextlib.ExitStack() as held:
        for _ in range(60):
            caller = held.enter_context(Caller(server))
            # No answer may be sent before there is room for it.
            caller.send(frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: 0}))
            caller.call(message)
        wait_for(lambda: private() > before + 200 * MiB, "the answers are there")
    wait_for(lambda: private() < before + 64 * MiB, "their memory is given back")


def test_large_requests_that_only_begin_take_no_descriptors_from_others(server: Server) -> None:
    """Each is announced with 1 GiB, and 2 KiB of it come."""
    before = descriptors(server)
    with Caller(server) as caller:
        for stream in range(1, 1001, 2):
            caller.headers(stream)
            caller.data(stream, b"\0" + (1 << 30).to_bytes(4, "big") + bytes(2048), 0)
        caller.send(frames.frame(frames.PING, 0, 0, b"all came"))
        caller.next(frames.PING)
        assert descriptors(server) < before + 200
        assert server.predict("half", [1.0])[0] == 200
    wait_for(lambda: descriptors(server) <= before, "the descriptors are closed")


def limited(number: int) -> dict[str, Any]:
    """For a server that can have so many descriptors, and no more."""
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))}


@contextlib.contextmanager
def crowd(address: str, number: int, *say: bytes) -> Iterator[list[socket.socket]]:
    """Connections that say one of these, and then nothing."""
    host, _, port = address.rpartition(":")
    made: list[socket.socket] = []
    try:
        for _ in range(number):
            made.append(socket.create_connection((host.removeprefix("http://"), int(port)), 60))
            with contextlib.suppress(OSError):  # It may have been hung up on.
                made[-1].sendall(say[len(made) % len(say)])
        yield made
    finally:
        for one in made:
            one.close()


def test_a_thousand_idle_clients_of_grpc_keep_no_client_out(sandbox: Sandbox, models: Path) -> None:
    server = Server(sandbox, str(models), "--host", "0.0.0.0", **limited(1024))
    try:
        warned = [line for line in server.errors if "everybody who can reach this address" in line]
        assert len(warned) == 2
        with crowd(server.grpc, 1100, b"", frames.PREFACE + frames.settings({})):
            for _ in range(20):
                assert server.predict("half", [1.0]) == (200, {"predictions": [2.5]})
            # They make room for others of their own kind, too.
            with grpc.insecure_channel(server.grpc) as channel:
                call = channel.unary_unary(PREDICT)
                call(predict(1), timeout=PATIENCE, wait_for_ready=True)
    finally:
        assert server.close() == 0


def answers(server: Server) -> bool:
    try:
        return server.predict("half", [1.0])[0] == 200
    except ConnectionError:
        return False  # It was hung up on, too.


def test_a_front_end_without_descriptors_hangs_up_on_new_clients_and_serves_the_others(
    sandbox: Sandbox, models: Path
) -> None:
    server = Server(sandbox, str(models))
    try:
        (pid,) = server.children(_FRONT_END)
        connection = server.connection()
        connection.request("GET", "/v1/models/half")
        assert connection.getresponse().read()
        used = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 5, used + 5))
        with crowd(server.facts["rest"], 50, b"") as others:
            ended = 0
            for one in others[20:]:
                with contextlib.suppress(ConnectionError):
                    assert one.recv(1) == b""
                ended += 1
            assert ended == 30
            connection.request("GET", "/v1/models/half")
            assert connection.getresponse().read()
        connection.close()
        wait_for(lambda: answers(server), "others are served again")
    finally:
        assert server.close() == 0
