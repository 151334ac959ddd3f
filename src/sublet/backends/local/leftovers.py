"""What killed processes have left behind: directories of attempts, and control groups.

Removed when a broker starts, and when it ends. Nothing goes that a process may still use: an
attempt whose keeper or worker runs stays, even if no ledger knows it, and so does a group with a
process in it.
"""

import os
import shutil
from collections.abc import Set
from pathlib import Path
from typing import Any

from sublet.formats import attempt_files
from sublet.keeper import cgroup, process_tree


def sweep(runs: Path, live: Set[str]) -> None:
    """Remove the directories of attempts that are not among the `live` ones, and the groups of
    keepers that are gone."""
    for directory in runs.iterdir():
        if directory.name not in live and not _is_inhabited(str(directory)):
            shutil.rmtree(directory, ignore_errors=True)
    for group in cgroup.all_groups():
        pid, _, start = os.path.basename(group.path).removeprefix(cgroup.PREFIX).partition("-")
        if not (_lives({"pid": pid, "start": start}) if start else os.path.exists(f"/proc/{pid}")):
            group.close()


def _is_inhabited(directory: str) -> bool:
    worker = attempt_files.read(directory, "worker.json") or {}
    owners = (attempt_files.read(directory, "claim"), worker, worker.get("keeper"))
    return any(_lives(owner) for owner in owners)


def _lives(process: Any) -> bool:
    """Whether a process of this number and start runs; what is no process does not."""
    try:
        return process_tree.is_alive(int(process["pid"]), int(process["start"]))
    except (LookupError, TypeError, ValueError):
        return False
