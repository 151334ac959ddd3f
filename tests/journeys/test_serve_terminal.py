"""Names and errors of models reach the terminal as text: none moves a cursor or forges a line."""

import http.client
import http.server
import json
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from support.sandbox import PATIENCE, Sandbox, wait_for
from support.servers import BAD, HALF, place

EVIL = "evil\x1b]0;owned\x07\x1b[2J\nhalf   1  ready\x9b31m\u202e"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    place(HALF, root, EVIL, 1)
    place(BAD, root, f"bad {EVIL}", 1)
    return root


class Showing:
    """A `sublet serve` without --json, and what it prints."""

    def __init__(self, sandbox: Sandbox, *words: str) -> None:
        self.process: subprocess.Popen[str] = sandbox.start(
            "serve", *words, "--port", "auto", "--rest_api_port", "auto"
        )
        self.said = {"stdout": "", "stderr": ""}
        self._threads = [threading.Thread(target=self._read, args=(name,)) for name in self.said]
        for thread in self._threads:
            thread.start()

    def _read(self, name: str) -> None:
        stream = getattr(self.process, name)
        for line in stream:
            self.said[name] += line
        stream.close()

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)
        for thread in self._threads:
            thread.join()


@pytest.fixture(scope="module")
def serving(shared_sandbox: Sandbox, models: Path) -> Iterator[Showing]:
    one = Showing(shared_sandbox, str(models))
    try:
        wait_for(lambda: "gRPC on" in one.said["stdout"] or one.process.poll(), "it is ready")
        yield one
    finally:
        one.close()


def harmless(text: str, lines: bool = True) -> None:
    """Nothing but text; and, where there are `lines` of ours, none that is not."""
    assert text
    odd = {one for one in text if not one.isprintable()} - {"\n"}
    assert not odd, text
    assert not lines or not any(line.startswith("half   1") for line in text.splitlines()), text


def test_what_a_server_shows_and_says(serving: Showing) -> None:
    harmless(serving.said["stdout"])
    harmless(serving.said["stderr"])
    assert "evil" in serving.said["stdout"]
    assert "is not served" in serving.said["stderr"]


def test_what_clients_send_and_tensorflow_quotes(serving: Showing) -> None:
    address = re.findall(r"REST on http://(\S+)", serving.said["stdout"])[0]
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    sent = "\x1b]0;sent by a client\x07\nsublet: all is well"
    body = json.dumps({"signature_name": "regress_x_to_y", "inputs": [sent]})
    connection.request("POST", f"/v1/models/{quote(EVIL)}:predict", body)
    answer = connection.getresponse()
    assert answer.status == 400, answer.read()
    connection.close()
    wait_for(lambda: "]0;sent by a client" in serving.said["stderr"], "TensorFlow has logged it")
    wait_for(lambda: "all is well" in serving.said["stderr"], "all of it was said")
    assert not set(serving.said["stderr"]) & set("\x1b\x07")
    assert not [one for one in serving.said["stderr"].split("\n") if one.startswith("sublet: all")]


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_what_models_shows(serving: Showing, sandbox: Sandbox, words: tuple[str, ...]) -> None:
    answer = sandbox.sublet("models", *words).stdout
    harmless(answer)
    if words:
        assert EVIL in {row["model"] for row in json.loads(answer)["models"]}


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_what_bench_shows(serving: Showing, sandbox: Sandbox, words: tuple[str, ...]) -> None:
    done = sandbox.sublet("bench", EVIL, "--time", "300ms", "--concurrency", "1", *words)
    assert done.returncode == 0, done.stderr
    harmless(done.stdout)
    done = sandbox.sublet("bench", f"{EVIL}?", "--time", "300ms")
    assert done.returncode == 2
    harmless(done.stderr, lines=False)


def test_what_tune_says(models: Path, sandbox: Sandbox) -> None:
    broken = models.parent / EVIL / "1"
    broken.mkdir(parents=True, exist_ok=True)
    shutil.copytree(BAD, broken, dirs_exist_ok=True)
    done = sandbox.sublet("tune", str(broken.parent), "--time", "300ms")
    assert done.returncode == 2
    harmless(done.stderr, lines=False)


class _Evil(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"error": EVIL}).encode()
        self.send_response(400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        pass


def test_what_another_server_answers_to_bench(sandbox: Sandbox) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), _Evil) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{other.server_port}"
        done = sandbox.sublet("bench", "half", "--url", url, "--time", "300ms")
        other.shutdown()
        thread.join()
    assert done.returncode == 2
    harmless(done.stderr, lines=False)
