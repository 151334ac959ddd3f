"""Clients that lie, break off, or never read: each harms itself only."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sublet.channel import records, segments, tensors
from sublet.errors import ServingError
from support.numpy_engine import FLOAT, NumpyEngine, floats, numpy_engine
from support.sandbox import PATIENCE, wait_for

OPEN = {"model": "double", "version": 1, "signature": "serving_default", "outputs": []}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NumpyEngine]:
    with numpy_engine(tmp_path_factory.mktemp("engine")) as one:
        for name in ("double", "large"):
            one.add(name)
        yield one


class Liar:
    """A client that sends what it likes."""

    def __init__(self, engine: NumpyEngine) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.connect(engine.path)
        self.sock.settimeout(PATIENCE)

    def open(self, **changes: object) -> None:
        request = {**OPEN, "inputs": ["x"], **changes}
        self.sock.send(records.plain(records.OPEN, body=json.dumps(request).encode()))

    def call(self, heads: bytes, rest: bytes = b"", route: int = 0, number: int = 1) -> None:
        length = records.CALL_HEAD.size + len(heads) + len(rest)
        head = records.CALL_HEAD.pack(length, records.CALL, 0, route, number, len(heads), 0)
        self.sock.send(head + heads + rest)

    def segment(self, memory: int, size: int) -> None:
        record = records.plain(records.SEGMENT, call=1, body=records.SIZE.pack(size))
        socket.send_fds(self.sock, [record], [memory])
        os.close(memory)

    def is_hung_up_on(self) -> bool:
        """Whether the engine has closed the connection without an answer."""
        try:
            return self.sock.recv(1 << 16) == b""
        except ConnectionError:
            return True


@pytest.fixture
def liar(engine: NumpyEngine) -> Iterator[Liar]:
    one = Liar(engine)
    yield one
    one.sock.close()
    works(engine)


def works(engine: NumpyEngine) -> None:
    client = engine.connect()
    answer = client.call("double", 1, "serving_default", {"x": floats([[1]])})
    assert answer.outputs["y"].item() == 2
    client.close()


def beside(size: int) -> bytes:
    """The head of a tensor that is in shared memory."""
    return tensors.head(FLOAT, (1, size // 4), tensors.BESIDE, size)


def test_random_bytes_are_hung_up_on(engine: NumpyEngine) -> None:
    chance = random.Random(5)
    for _ in range(200):
        liar = Liar(engine)
        liar.sock.send(chance.randbytes(chance.randrange(1, 300)))
        assert liar.is_hung_up_on()
        liar.sock.close()
    works(engine)


def test_records_with_random_insides_harm_nobody(engine: NumpyEngine) -> None:
    chance = random.Random(6)
    kinds = [*range(1, 7), *range(65, 70), 0, 255]
    for _ in range(300):
        liar = Liar(engine)
        liar.open()
        body = chance.randbytes(chance.randrange(0, 200))
        liar.sock.send(
            records.plain(chance.choice(kinds), 0, 1, chance.choice([0, 16, 24, 9999]), body)
        )
        liar.sock.close()
    works(engine)


@pytest.mark.parametrize(
    "heads",
    [
        b"12345678",
        tensors.head(FLOAT, (1, 1), tensors.INLINE, 4)[:-8],
        tensors.head(FLOAT, (1, 1), tensors.INLINE, 4) * 2,
        tensors.head(FLOAT, (1, 1000), tensors.INLINE, 4000),
        tensors.head(FLOAT, (1, 1), tensors.INLINE, 8),
        tensors.head(FLOAT, (-1, 1), tensors.INLINE, 4),
        tensors.head(FLOAT, (1 << 62, 1 << 62), tensors.INLINE, 4),
        tensors.head(99, (1, 1), tensors.INLINE, 4),
        tensors.head(7, (1,), tensors.INLINE, 4),
        beside(1 << 20),
    ],
)
def test_tensors_that_are_not_what_they_say_are_hung_up_on(liar: Liar, heads: bytes) -> None:
    liar.open()
    liar.call(heads, b"\xff" * 8 if heads[0] == 7 else b"\0" * 8)
    assert liar.is_hung_up_on()


def test_a_call_on_no_route_is_hung_up_on(liar: Liar) -> None:
    liar.call(tensors.head(FLOAT, (1, 1), tensors.INLINE, 4), b"\0" * 8, route=3)
    assert liar.is_hung_up_on()


def test_a_route_to_an_unknown_model_is_answered(liar: Liar) -> None:
    liar.open(model="nothing")
    liar.call(tensors.head(FLOAT, (1, 1), tensors.INLINE, 4), b"\0" * 8)
    (record,) = records.read(liar.sock.recv(1 << 16))
    assert record.kind == records.FAILED


def test_memory_that_is_not_sealed_is_hung_up_on(liar: Liar) -> None:
    memory = os.memfd_create("liar", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, 1 << 20)
    liar.segment(memory, 1 << 20)
    assert liar.is_hung_up_on()


def test_memory_that_is_smaller_than_it_says_is_hung_up_on(liar: Liar) -> None:
    liar.segment(segments.create(1 << 12), 1 << 20)
    assert liar.is_hung_up_on()


def test_a_file_is_no_shared_memory(liar: Liar, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    liar.segment(os.open(path, os.O_RDWR), 1 << 20)
    assert liar.is_hung_up_on()


@pytest.mark.parametrize("offset", [1 << 20, (1 << 20) - 4096, 4, 1 << 63])
def test_a_tensor_outside_of_its_memory_is_hung_up_on(liar: Liar, offset: int) -> None:
    liar.open()
    liar.segment(segments.create(1 << 20), 1 << 20)
    liar.call(beside(1 << 17), tensors.REF.pack(1, 0, offset))
    assert liar.is_hung_up_on()


def test_a_client_that_never_reads_is_given_up(engine: NumpyEngine) -> None:
    """It can hold up nobody, and what waits for it is bounded."""
    liar = Liar(engine)
    liar.open(model="large")
    heads = tensors.head(FLOAT, (1, 10), tensors.INLINE, 40)

    def call_on() -> None:
        for number in range(1 << 20):
            liar.call(heads, bytes(40), number=number)

    with pytest.raises(ConnectionError):
        call_on()
    liar.sock.close()
    works(engine)


def test_a_client_that_is_killed_in_mid_call_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np; from sublet.channel.async_client import connect; "
        "from sublet.channel.sync_client import SyncClient; "
        "client = SyncClient(connect(sys.argv[1])); x = np.ones((1000, 1000), np.float32); "
        "[client.submit('held', 1, 'serving_default', {'x': x}) for _ in range(3)]; "
        "client.call('held', 1, 'serving_default', {'x': x})"
    )
    with numpy_engine(tmp_path) as engine:
        engine.add("held", max_batch_size=1000)
        client = subprocess.Popen([sys.executable, "-c", code, engine.path])
        wait_for(lambda: engine.model("held")["waiting"] == 3000, "one runs, three wait")
        maps = Path(f"/proc/{engine.process.pid}/maps")
        assert "memfd:sublet" in maps.read_text()
        os.kill(client.pid, signal.SIGKILL)
        client.wait()
        wait_for(lambda: engine.model("held")["waiting"] == 0, "nobody waits")
        engine.touch("go")
        wait_for(lambda: engine.model("held")["running"] == 0, "nothing runs")
        wait_for(lambda: "memfd:sublet" not in maps.read_text(), "its memory is gone")


def test_an_engine_that_lies_is_hung_up_on() -> None:
    """A client does not trust what it hears either."""
    from sublet.channel.sync_client import SyncClient

    for answer in (b"garbage!", records.plain(records.ANSWER, call=99), records.plain(200)):
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client = SyncClient(mine)
        future = client.submit("m", 1, "s", {"x": floats([1])})
        theirs.send(answer)
        error = future.exception(PATIENCE)
        assert isinstance(error, ServingError)
        client.close()
        theirs.close()


@pytest.mark.parametrize(
    "kind", [records.SEGMENT, records.RECORDER, records.OPEN, records.CANCEL, 77]
)
@pytest.mark.parametrize("body", [b"", b"1234567", b"\0" * 8])
def test_descriptors_that_come_with_a_bad_record_do_not_stay(
    engine: NumpyEngine, kind: int, body: bytes
) -> None:
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{engine.process.pid}/fd"))

    works(engine)
    before = descriptors()
    memory = os.memfd_create("liar", os.MFD_ALLOW_SEALING)
    for _ in range(50):
        liar = Liar(engine)
        socket.send_fds(liar.sock, [records.plain(kind, body=body)], [memory] * 5)
        liar.sock.close()
    os.close(memory)
    works(engine)
    wait_for(lambda: descriptors() <= before, "all descriptors are closed")
