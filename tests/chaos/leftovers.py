"""What may not be there any more when all has ended."""

import os
from pathlib import Path

from chaos.history import Event
from sublet.keeper import process_tree
from sublet.keeper.cgroup import _own
from support.sandbox import Sandbox

_EARLIER = 60.0
"""Seconds between the first keeper's start and the first line of a program."""


def after(sandbox: Sandbox, events: list[Event], keepers: set[int]) -> list[str]:
    """Processes, control groups, directories and sockets of a home that was shut down."""
    found = [f"process {pid}: {words}" for pid, words in sandbox.processes().items()]
    for one in events:
        if one.kind == "child" and _is_child(one):
            found.append(f"a child of {one.name}: process {one.facts['child']}")
    for path in Path(_own() or "/nowhere").glob("sublet-*"):
        pid, start = (int(part) for part in path.name.split("-")[1:])
        # The number may be another process's by now, or may have been before this home was made.
        is_ours = pid in keepers and start / os.sysconf("SC_CLK_TCK") > events[0].at - _EARLIER
        if is_ours and process_tree.start_time(pid) is None:
            inside = (path / "cgroup.procs").read_text().split()
            found.append(f"control group {path} with processes {inside}")
    for place in ("runs", "engines"):
        found += [f"{path}" for path in sorted((sandbox.home / place).glob("*"))]
    if (sandbox.home / "broker.sock").exists():
        found.append("the broker's socket")
    found += [f"partial file {path}" for path in sandbox.home.rglob(".*.*") if path.is_file()]
    return found


def _is_child(one: Event) -> bool:
    """Whether the process that a program has left is still there, and no other by its number."""
    pid = int(one.facts["child"])
    start = process_tree.start_time(pid)
    if start is None or process_tree.name(pid) != "sleep":
        return False
    return abs(start / os.sysconf("SC_CLK_TCK") - _since_boot(one.at)) < 30


def _since_boot(monotonic: float) -> float:
    """Start times count from boot, and so does this clock while a machine is never suspended."""
    return monotonic
