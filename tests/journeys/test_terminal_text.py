"""Names of jobs reach the terminal as text, also those of clients that speak the protocol
themselves: none moves a cursor or forges a line."""

import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sublet.client import job_request
from sublet.client.connection import Connection, connect_or_start
from sublet.home import Home
from sublet.wire import PROTOCOL
from sublet.wire.messages import Queued
from sublet.wire.pack import pack
from support.queue import ended, reached
from support.sandbox import Sandbox

EVIL = "\x1b]0;owned\x07\x1b[2J\r\nall is well\x9b31m\u202e"


@pytest.fixture
def speak(new_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A home, and a client of its broker that keeps to no rules."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="8GiB")
    for name, value in sandbox.environ.items():
        monkeypatch.setenv(name, value)
    connections: list[Connection] = []

    def submit(words: list[str], **changed: Any) -> int:
        spec = job_request.job_without_client(words, "64MiB") | {"name": f"a{EVIL}"} | changed
        connection = connect_or_start(Home.find())
        connections.append(connection)
        tree = {"type": "submit", "spec": spec, "token": f"t{len(connections)}"}
        connection.send(pack(tree | {"indexes": (), "at_once": 0, "protocol": PROTOCOL}))
        reply = connection.receive()
        assert isinstance(reply, Queued)
        return reply.jobs[0]

    yield sandbox, submit
    for connection in connections:
        connection.close()


def test_no_command_prints_what_a_job_is_called_as_it_is(speak: Any) -> None:
    sandbox, submit = speak
    done = submit(["sh", "-c", f"exit 3 # {EVIL}", EVIL])
    ended(sandbox, done)
    most = {"type": "share", "share": 0.6}
    runs = submit(["sleep", "600"], memory=most)
    reached(sandbox, runs, "running")
    waits = submit(["sleep", "600"], memory=most)
    commands = (
        ["status"],
        ["status", "--json"],
        ["ps"],
        ["ps", "--json"],
        ["ps", "--all"],
        ["explain", str(done)],
        ["explain", "--json", str(runs)],
        ["wait", str(done)],
        ["wait", "--json", str(done)],
        ["logs", str(done)],
        ["pause", str(runs)],
        ["resume", "--json", str(runs)],
        ["cancel", str(done)],
        ["submit", "--after-ok", str(done), "sleep", "1"],
        ["retry", str(done)],
        ["cancel", str(waits)],
        ["down", "--stop"],
    )
    reply = []
    with sandbox.start("run", "--memory", "60%", "sleep", "1") as client:
        reply.append((["run"], client.stderr.readline()))
        client.terminate()
    for words in commands:
        answer = sandbox.sublet(*words)
        reply.append((words, f"{answer.stdout}{answer.stderr}"))
    for words, shown in reply:
        bad = [one for one in shown if unicodedata.category(one) in ("Cc", "Cf") and one != "\n"]
        assert not bad, (words, shown)
        assert not any(line.startswith("all is well") for line in shown.splitlines()), words
