"""Who is told that a job has ended, and how."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from sublet import notify
from sublet.domain.job import Outcome
from sublet.errors import BadRequest, WorldError
from sublet.policy.notification import notification
from support.jobs import lease
from support.sandbox import Sandbox, wait_for

EVENT = notification(13, "cnn", Outcome("exited", 3, ran=12.0), lease(), "here")


class Hook:
    """A web hook that answers with these codes, one after the other."""

    def __init__(self, *codes: int) -> None:
        self.heard: list[dict[str, Any]] = []
        answers = list(codes)
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.heard.append(json.loads(body))
                self.send_response(answers.pop(0))
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/secret"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "_PAUSES", (0.0, 0.001, 0.002))


@pytest.mark.usefixtures("no_pauses")
def test_a_hook_gets_the_event_and_is_tried_again_where_it_fails_of_itself() -> None:
    hook = Hook(503, 200)
    notify.send(hook.address, EVENT)
    hook.close()
    assert hook.heard == [EVENT, EVENT]
    assert EVENT["text"] == "#13 cnn on here failed after 12.0 s: exit code 3"


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize(("codes", "says"), [((404,), "answered 404"), ((500,) * 3, "500")])
def test_a_hook_that_does_not_take_it_is_not_named(codes: tuple[int, ...], says: str) -> None:
    """Its address may be a secret."""
    hook = Hook(*codes)
    with pytest.raises(WorldError, match=says) as failed:
        notify.send(hook.address, EVENT)
    hook.close()
    assert "secret" not in str(failed.value)
    assert len(hook.heard) == len(codes)


@pytest.mark.usefixtures("no_pauses")
def test_nobody_at_the_hook() -> None:
    hook = Hook()
    hook.close()
    with pytest.raises(WorldError, match="cannot be reached"):
        notify.send(hook.address, EVENT)


def test_a_command_gets_the_event_in_variables(tmp_path: Path) -> None:
    told = tmp_path / "told"
    notify.send(f'echo "$SUBLET_JOB_TEXT|$SUBLET_JOB_STATE|$SUBLET_JOB_EXIT" > {told}', EVENT)
    assert told.read_text() == f"{EVENT['text']}|failed|3\n"
    notify.send(f'test -z "$SUBLET_LEASE$SUBLET_DEVICE" && echo apart > {told}', EVENT)
    assert told.read_text() == "apart\n"
    with pytest.raises(WorldError, match="ended with 4"):
        notify.send("exit 4", EVENT)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Outcome("exited", 0), "done"),
        (Outcome("stopped", 0), "done"),
        (Outcome("cancelled", 143), "cancelled"),
        (Outcome("signalled", 130, by_user=True), "cancelled"),
        (Outcome("lease exceeded", 1), "failed"),
        (Outcome("lost", 255), "failed"),
    ],
)
def test_how_it_ended(outcome: Outcome, state: str) -> None:
    event = notification(1, "a", outcome, None, "here")
    assert (event["state"], event["lease"]) == (state, None)


@pytest.mark.parametrize("target", [" ", "x" * 3000, "a\0b", "https://"])
def test_nobody_can_be_told_there(target: str) -> None:
    with pytest.raises(BadRequest):
        notify.check(target)


def test_a_desktop_needs_its_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadRequest, match="notify-send"):
        notify.check("desktop")
    shown = tmp_path / "shown"
    (tmp_path / "notify-send").write_text(f'#!/bin/sh\necho "$@" > {shown}\n')
    (tmp_path / "notify-send").chmod(0o755)
    notify.send(notify.check("desktop"), EVENT)
    assert shown.read_text().endswith(f"-- Sublet {EVENT['text']}\n")


def test_the_broker_has_them_told(sandbox: Sandbox) -> None:
    sandbox.write("fails.py", "raise SystemExit(3)")
    hook = Hook(200)
    command = 'echo "$SUBLET_JOB_TEXT" > told.draft && mv told.draft told'
    assert sandbox.sublet("run", "-q", "--notify", command, "fails.py").returncode == 3
    sandbox.sublet("submit", "--notify", hook.address, "fails.py", check=True)
    wait_for(lambda: hook.heard, "the hook")
    wait_for((sandbox.work / "told").exists, "the command")
    hook.close()
    assert " fails.py on " in (sandbox.work / "told").read_text()
    assert (hook.heard[0]["name"], hook.heard[0]["exit"]) == ("fails.py", 3)
