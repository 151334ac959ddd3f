"""A real server, started as a user starts it, and plain HTTP to speak with it."""

import http.client
import json
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

from support.sandbox import PATIENCE, Sandbox, wait_for

MODELS = Path(__file__).parents[1] / "data" / "savedmodels"
HALF = MODELS / "saved_model_half_plus_two_cpu" / "00000123"
THREE = MODELS / "saved_model_half_plus_three" / "00000123"
ABORTING = MODELS.parent / "models" / "aborting" / "1"
FRAGILE = MODELS.parent / "models" / "fragile" / "1"
ENDLESS = MODELS.parent / "models" / "endless" / "1"
BAD = MODELS / "bad_half_plus_two" / "00000123"
_FRONT_END = "sublet.serving.frontend.process"
_ENGINE = "sublet.engine"


def place(source: Path, root: Path, name: str, version: int) -> Path:
    """A copy of a version, which appears at once, as a careful user makes it."""
    target = root / name / str(version)
    part = target.with_name(f"{version}.tmp")
    shutil.copytree(source, part)
    part.rename(target)
    return target


class Server:
    """One `sublet serve`; ready when it is made."""

    def __init__(self, sandbox: Sandbox, *words: str, ready: bool = True, **options: Any) -> None:
        self.sandbox = sandbox
        self._before = set(sandbox.processes().items())
        self.process = sandbox.start(
            "serve", *words, "--port", "auto", "--rest_api_port", "auto", "--json", **options
        )
        self.errors: list[str] = []
        self.draining = False
        """Whether it was told to end."""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self.facts: dict[str, Any] = {}
        if ready:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.close()
            raise AssertionError("".join(self.errors))
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
        status, outcome = self.get(f"/v1/models/{name}")
        rows = outcome["model_version_status"] if status == 200 else []
        return {int(row["version"]): row["state"] for row in rows}

    def children(self, part: str) -> list[int]:
        """The processes whose command line has this in it, and that it has started."""
        # A worker that was forked ahead has another command line once it is an engine.
        new = self.sandbox.processes().items() - self._before
        return sorted(pid for pid, words in new if part in words)

    def signal(self, number: signal.Signals) -> None:
        self.draining = True
        self.process.send_signal(number)

    def close(self) -> int:
        """End it as a service manager does, if nobody has; its exit code."""
        if not self.draining:
            self.signal(signal.SIGTERM)
        try:
            code = self.process.wait(PATIENCE)
        finally:
            self.process.kill()
        self._reading.join()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()
        for part in (_FRONT_END, _ENGINE):
            wait_for(lambda part=part: not self.children(part), f"no {part} is left")  # type: ignore[misc]
        odd = [line for line in self.errors if "Traceback" in line or "Unknown child" in line]
        assert not odd, "".join(self.errors)
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


def failed_to_start(sandbox: Sandbox, *words: str) -> str:
    """What a server that does not start says."""
    done: subprocess.CompletedProcess[str] = sandbox.sublet("serve", *words)
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stderr


class Load:
    """Clients that call a model without a pause, until the dedent; `wrong` has what they got.

    The first call is answered when the block begins.
    """

    def __init__(
        self, server: Server, name: str, answers: list[Any], clients: int = 4, rows: int = 1
    ) -> None:
        self.calls = 0
        self.wrong: list[Any] = []
        self._server = server
        self._path = f"/v1/models/{name}:predict"
        self._answers = [{"predictions": [answer] * rows} for answer in answers]
        self._body = json.dumps({"instances": [1.0] * rows})
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._call) for _ in range(clients)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        try:
            wait_for(lambda: self.calls or self.wrong, "a call is answered")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _call(self) -> None:
        connection = self._server.connection()
        while not self._over.is_set():
            try:
                connection.request("POST", self._path, self._body)
            except OSError:
                # It was closed between two requests, as a server may: this was none yet.
                if self._server.draining:
                    break
                connection.close()
                continue
            try:
                reply = connection.getresponse()
                answer = json.loads(reply.read())
            except (OSError, http.client.HTTPException) as error:
                if self._server.draining and isinstance(error, http.client.RemoteDisconnected):
                    break
                self.wrong.append(repr(error))
                break
            if reply.status != 200 or answer not in self._answers:
                self.wrong.append((reply.status, answer))
            self.calls += 1
            if reply.will_close:
                break
        connection.close()
