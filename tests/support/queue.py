"""The queue of a sandbox, through the real command."""

import json
from pathlib import Path
from typing import Any

from sublet.formats import attempt_files
from sublet.keeper import process_tree
from support.sandbox import Sandbox, wait_for

HOLD = "while [ ! -e {} ]; do sleep 0.02; done"
"""A shell command that runs until there is such a file."""


def submit(sandbox: Sandbox, *words: str, memory: str = "64MiB") -> int:
    """Submit a command line with options; its number."""
    answer = sandbox.sublet("submit", "--json", "--memory", memory, *words)
    assert answer.returncode == 0, answer.stderr
    return int(json.loads(answer.stdout)["id"])


def shell(sandbox: Sandbox, command: str, *options: str, memory: str = "64MiB") -> int:
    """Submit a shell command; its number."""
    return submit(sandbox, *options, "sh", "-c", command, memory=memory)


def rows(sandbox: Sandbox, *numbers: int) -> list[dict[str, Any]]:
    """How these jobs stand."""
    answer = sandbox.sublet("ps", "--json", *map(str, numbers))
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)["jobs"]  # type: ignore[no-any-return]


def row(sandbox: Sandbox, number: int) -> dict[str, Any]:
    """How this job stands."""
    (only,) = rows(sandbox, number)
    return only


def reached(sandbox: Sandbox, number: int, state: str) -> dict[str, Any]:
    """Wait until the job is in this state."""

    def there() -> dict[str, Any] | None:
        now = row(sandbox, number)
        return now if now["state"] == state else None

    return wait_for(there, f"job {number} is {state}")  # type: ignore[no-any-return]


def ended(sandbox: Sandbox, *numbers: int) -> list[dict[str, Any]]:
    """Wait until these jobs have finished; how."""
    answer = sandbox.sublet("wait", "--json", *map(str, numbers))
    assert answer.stdout, answer.stderr
    return json.loads(answer.stdout)["jobs"]  # type: ignore[no-any-return]


def said(sandbox: Sandbox, number: int, *options: str) -> str:
    """What the job has written."""
    answer = sandbox.sublet("logs", *options, str(number), check=True)
    return str(answer.stdout)


def stands(sandbox: Sandbox, row: dict[str, Any]) -> bool:
    """Whether a job's program does not run: stopped by signals, or frozen as a group."""
    kept = attempt_files.read(str(sandbox.home / "runs" / row["attempt_id"]), "worker.json") or {}
    if process_tree.stands(row["pid"]):
        return True
    return bool(kept.get("group")) and (
        "frozen 1" in (Path(kept["group"]) / "cgroup.events").read_text()
    )
