"""A real server, started as a user starts it, and plain HTTP to speak with it."""

import http.client
import json
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

from support.box import Box, wait_for

MODELS = Path(__file__).parents[1] / "data" / "savedmodels"
HALF = MODELS / "saved_model_half_plus_two_cpu" / "00000123"
THREE = MODELS / "saved_model_half_plus_three" / "00000123"
BAD = MODELS / "bad_half_plus_two" / "00000123"


def place(source: Path, root: Path, name: str, version: int) -> Path:
    """A copy of a version, which appears at once, as a careful user makes it."""
    target = root / name / str(version)
    part = target.with_name(f"{version}.tmp")
    shutil.copytree(source, part)
    part.rename(target)
    return target


class Server:
    """One `sublet serve`; ready when it is made."""

    def __init__(self, box: Box, *words: str, ready: bool = True) -> None:
        self.box = box
        self.process = box.start(
            "serve", *words, "--port", "auto", "--rest_api_port", "auto", "--json"
        )
        self.errors: list[str] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self.facts: dict[str, Any] = {}
        if ready:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "".join(self.errors)
        self.facts = json.loads(line)

    @property
    def grpc(self) -> str:
        return str(self.facts["grpc"])

    def connection(self) -> http.client.HTTPConnection:
        host, _, port = self.facts["rest"].removeprefix("http://").partition(":")
        return http.client.HTTPConnection(host, int(port), timeout=60)

    def get(self, path: str) -> tuple[int, Any]:
        return self._speak("GET", path, None)

    def text(self, path: str) -> str:
        connection = self.connection()
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def predict(self, name: str, values: list[Any], where: str = "") -> tuple[int, Any]:
        return self._speak("POST", f"/v1/models/{name}{where}:predict", {"instances": values})

    def states(self, name: str) -> dict[int, str]:
        """Of each version."""
        status, told = self.get(f"/v1/models/{name}")
        rows = told["model_version_status"] if status == 200 else []
        return {int(row["version"]): row["state"] for row in rows}

    def children(self, part: str) -> list[int]:
        """The processes of this home whose command line has this in it."""
        return [pid for pid, words in self.box.processes().items() if part in words]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def close(self) -> int:
        """End it as a service manager does; its exit code."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        code = self.process.wait(60)
        self._reading.join()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()
        wait_for(lambda: not self.children("sublet.serving.frontend"), "no front end is left")
        wait_for(lambda: not self.children("sublet.inside.serving"), "no engine is left")
        return code

    def _speak(self, verb: str, path: str, body: Any) -> tuple[int, Any]:
        connection = self.connection()
        try:
            connection.request(verb, path, None if body is None else json.dumps(body))
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())
        finally:
            connection.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line)


def failed_to_start(box: Box, *words: str) -> str:
    """What a server that does not start says."""
    done: subprocess.CompletedProcess[str] = box.sublet("serve", *words)
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stderr
