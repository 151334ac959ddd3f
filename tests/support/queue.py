"""The queue of a box, through the real command."""

import json
from pathlib import Path
from typing import Any

from sublet.formats import attempt_files
from sublet.keeper import process_tree
from support.box import Box, wait_for

HOLD = "while [ ! -e {} ]; do sleep 0.02; done"
"""A shell command that runs until there is such a file."""


def submit(box: Box, *words: str, memory: str = "64MiB") -> int:
    """Submit a command line with options; its number."""
    answer = box.sublet("submit", "--json", "--memory", memory, *words)
    assert answer.returncode == 0, answer.stderr
    return int(json.loads(answer.stdout)["id"])


def shell(box: Box, command: str, *options: str, memory: str = "64MiB") -> int:
    """Submit a shell command; its number."""
    return submit(box, *options, "sh", "-c", command, memory=memory)


def rows(box: Box, *numbers: int) -> list[dict[str, Any]]:
    """How these jobs stand."""
    answer = box.sublet("ps", "--json", *map(str, numbers))
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)["rows"]  # type: ignore[no-any-return]


def row(box: Box, number: int) -> dict[str, Any]:
    """How this job stands."""
    (only,) = rows(box, number)
    return only


def reached(box: Box, number: int, state: str) -> dict[str, Any]:
    """Wait until the job is in this state."""

    def there() -> dict[str, Any] | None:
        now = row(box, number)
        return now if now["state"] == state else None

    return wait_for(there, f"job {number} is {state}")  # type: ignore[no-any-return]


def ended(box: Box, *numbers: int) -> list[dict[str, Any]]:
    """Wait until these jobs have finished; how."""
    answer = box.sublet("wait", "--json", *map(str, numbers))
    assert answer.stdout, answer.stderr
    return json.loads(answer.stdout)  # type: ignore[no-any-return]


def said(box: Box, number: int, *options: str) -> str:
    """What the job has written."""
    answer = box.sublet("logs", *options, str(number), check=True)
    return str(answer.stdout)


def stands(box: Box, row: dict[str, Any]) -> bool:
    """Whether a job's program does not run: stopped by signals, or frozen as a group."""
    kept = attempt_files.read(str(box.home / "runs" / row["run"]), "worker.json") or {}
    if process_tree.stands(row["pid"]):
        return True
    return bool(kept.get("group")) and (
        "frozen 1" in (Path(kept["group"]) / "cgroup.events").read_text()
    )
