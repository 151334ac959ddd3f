"""Who speaks to the socket of the broker by himself ends his own connection, and nothing else."""

import contextlib
import math
import os
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import sublet
from sublet.client import job_request
from sublet.errors import BadRequest
from sublet.wire import PROTOCOL
from sublet.wire import messages as say
from sublet.wire.frames import LARGEST, Frames
from support.queue import ended, row, shell
from support.sandbox import PATIENCE, Sandbox, wait_for

NewSandbox = Callable[..., Sandbox]


@contextlib.contextmanager
def connected(sandbox: Sandbox) -> Iterator[Frames]:
    """A connection to the broker that runs."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(PATIENCE)
    directory = os.open(sandbox.home, os.O_RDONLY)
    try:
        sock.connect(f"/proc/self/fd/{directory}/broker.sock")
    finally:
        os.close(directory)
    frames = Frames(sock)
    try:
        yield frames
    finally:
        frames.close()


def answer(frames: Frames) -> say.Reply | None:
    """The next reply; None when the broker has hung up."""
    while (data := frames.take()) is None:
        if not frames.fill():
            return None
    return say.decode_reply(data)


def refused(sandbox: Sandbox, message: bytes, descriptors: list[int] | None = None) -> say.Refused:
    """What the broker says to this."""
    with connected(sandbox) as frames:
        frames.send(message, descriptors)
        reply = answer(frames)
    assert isinstance(reply, say.Refused), reply
    return reply


def submission(**changes: Any) -> bytes:
    """A job to be submitted, with something about it that no client of ours would send."""
    spec: dict[str, Any] = {**job_request.job_without_client(["true"], "64MiB")}
    for name, value in changes.items():
        inner, _, field = name.rpartition("__")
        (spec[inner] if inner else spec)[field] = value
    tree = {"type": "submit", "spec": spec, "token": os.urandom(8).hex(), "protocol": PROTOCOL}
    return msgspec.msgpack.encode(tree)


WRONG: dict[str, dict[str, Any]] = {
    "a long name": {"name": "x" * (8 << 20)},
    "a long device": {"device": "x" * (1 << 20)},
    "a long reason": {"cold": "x" * (1 << 20)},
    "many arguments": {"program__args": [b"x" * (1 << 20)] * 7},
    "a large environment": {"surroundings__environ": {b"X": b"x" * (7 << 20)}},
    "a null byte": {"program__args": [b"a\0b"]},
    "no number of seconds": {"time": math.nan},
    "endless grace": {"grace": math.inf},
    "no size": {"memory": {"type": "share", "share": math.nan}},
    "no signal": {"surroundings__ignored": [1 << 40]},
    "no limit": {"surroundings__limits": {1 << 40: (0, 0)}},
    "no processor": {"surroundings__affinity": [1 << 40]},
    "no mask": {"surroundings__umask": -1},
    "no niceness": {"surroundings__nice": 1 << 40},
    "no stream": {"surroundings__closed": [7]},
    "no job": {"after": [(1 << 64) - 1]},
    "another type": {"name": 7},
    "a negative count": {"retries": -1},
}


@pytest.mark.parametrize("what", WRONG)
def test_a_job_that_cannot_be_is_refused_and_leaves_nothing(
    shared_sandbox: Sandbox, what: str
) -> None:
    pid = shared_sandbox.status()["pid"]
    before = shared_sandbox.sublet("ps", "--json", check=True).stdout
    reply = refused(shared_sandbox, submission(**WRONG[what]))
    assert reply.kind == "BadRequest"
    assert len(reply.message) < 500
    assert shared_sandbox.status()["pid"] == pid
    assert shared_sandbox.sublet("ps", "--json", check=True).stdout == before


FRAMES = {
    "text that is no UTF-8": b"\x81\xa4type\xa3\xff\xfe\xfd",
    "lists in lists": b"\x82\xa4type\xa6status\xa1x" + b"\x91" * 100_000 + b"\xc0",
    "no protocol": msgspec.msgpack.encode({"type": "status", "protocol": "one"}),
    "a large number": msgspec.msgpack.encode({"type": "explain", "job": (1 << 64) - 1}),
    "a negative count": msgspec.msgpack.encode({"type": "jobs", "live": -1}),
    "a large count": msgspec.msgpack.encode({"type": "jobs", "finished": (1 << 64) - 1}),
    "a token that is no ASCII": msgspec.msgpack.encode({"type": "attach", "job": 1, "token": "é"}),
    "too many numbers": msgspec.msgpack.encode({"type": "watch", "jobs": [1] * 200_000}),
}


@pytest.mark.parametrize("what", FRAMES)
def test_a_message_that_is_none_ends_its_own_connection_only(
    shared_sandbox: Sandbox, what: str
) -> None:
    pid = shared_sandbox.status()["pid"]
    with connected(shared_sandbox) as bystander:
        assert refused(shared_sandbox, FRAMES[what]).kind == "BadRequest"
        bystander.send(say.encode(say.AskStatus()))
        reply = answer(bystander)
    assert isinstance(reply, say.Snapshot)
    assert reply.pid == pid


def test_a_signal_that_there_is_not_reaches_no_program(sandbox: Sandbox) -> None:
    spec = job_request.job(["sh", "-c", "while [ ! -e go ]; do sleep 0.02; done"], "64MiB")
    spec["surroundings"]["cwd"] = os.fsencode(sandbox.work)
    run = {"type": "run", "spec": spec, "token": os.urandom(8).hex(), "protocol": PROTOCOL}
    null = os.open(os.devnull, os.O_RDWR)
    with connected(sandbox) as frames:
        frames.send(msgspec.msgpack.encode(run), [null, null, null])
        while not isinstance(answer(frames), say.Started):
            pass
        frames.send(msgspec.msgpack.encode({"type": "signal", "number": 1 << 40}))
        reply = answer(frames)
    os.close(null)
    # It ends as that of any client that hangs up does.
    assert isinstance(reply, say.Refused)
    wait_for(lambda: not sandbox.status()["leases"], "its program has ended")


def test_more_descriptors_than_a_program_has_streams_are_closed(shared_sandbox: Sandbox) -> None:
    pid = shared_sandbox.status()["pid"]
    before = len(os.listdir(f"/proc/{pid}/fd"))
    null = os.open(os.devnull, os.O_RDWR)
    for _ in range(3):
        with connected(shared_sandbox) as frames, contextlib.suppress(OSError):
            for _ in range(100):
                socket.send_fds(frames.sock, [b"\0"], [null] * 8)
    os.close(null)
    wait_for(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= before, "they are closed")
    assert shared_sandbox.status()["pid"] == pid


def test_a_request_that_is_too_large_is_refused_before_it_is_sent(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBLET_HOME", str(sandbox.home))
    with pytest.raises(BadRequest, match="at most 16 MiB") as refusal:
        sublet.submit(["true", *["x" * (1 << 20)] * 20], memory="64MiB")
    assert "file" in refusal.value.hint
    # By the broker, too.
    with connected(sandbox) as frames:
        frames.sock.sendall((LARGEST + 1).to_bytes(4, "big"))
        reply = answer(frames)
    assert isinstance(reply, say.Refused)


def test_silent_clients_make_room_and_those_that_wait_are_not_disturbed(
    new_sandbox: NewSandbox,
) -> None:
    """The broker may have few descriptors, and says so when there are none left to give."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="1GiB")
    pid = sandbox.status()["pid"]
    used = max(map(int, os.listdir(f"/proc/{pid}/fd")))
    holder = shell(sandbox, "while [ ! -e go ]; do sleep 0.02; done", memory="600MiB")
    wait_for(lambda: row(sandbox, holder)["state"] == "running", "it runs")
    limit = used + 64 + 60
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, limit))
    waiting = [
        sandbox.start("run", "-q", "--memory", "600MiB", "sh", "-c", f"echo {number}")
        for number in range(8)
    ]
    wait_for(lambda: len(sandbox.status()["waiting"]) == 8, "all wait")
    with contextlib.ExitStack() as silent:
        for _ in range(200):
            silent.enter_context(connected(sandbox))
        assert sandbox.status()["pid"] == pid
    with contextlib.ExitStack() as asking:
        reply: say.Reply | None = None
        for _ in range(200):
            frames = asking.enter_context(connected(sandbox))
            # One that is refused may be hung up on before it has asked.
            with contextlib.suppress(ConnectionError):
                frames.send(say.encode(say.AskStatus()))
            reply = answer(frames)
            if isinstance(reply, say.Refused):
                break
        assert isinstance(reply, say.Refused)
        assert "as many clients as it can have" in reply.message
        clear = sandbox.sublet("status")
        assert clear.returncode != 0
        assert "as many clients as it can have" in clear.stderr
        assert "Traceback" not in clear.stderr
    assert sandbox.status()["pid"] == pid
    sandbox.write("go", "")
    assert ended(sandbox, holder)[0]["exit"] == 0
    for number, client in enumerate(waiting):
        assert client.communicate(timeout=PATIENCE)[0] == f"{number}\n"
        assert client.returncode == 0
    assert Path(f"/proc/{pid}").exists()
