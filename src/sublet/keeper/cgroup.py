"""A control group (version 2) around one worker's tree, where this user may make one.

It lists the whole tree however its processes detach, ends or freezes it at once, and limits the
number of its processes. Without one the keeper works through its descendants. Only the limit has no
substitute: RLIMIT_NPROC counts all processes of the user. SUBLET_NO_CGROUP=1 in the broker's
environment disables control groups.
"""

from __future__ import annotations

import contextlib
import os

PREFIX = "sublet-"
"""The names of our groups begin with it; the keeper's number and start time follow."""


class Cgroup:
    """One group; `close` removes it once it is empty."""

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def make(cls, name: str) -> Cgroup | None:
        """A new group below our own; None if that is not allowed or not wanted."""
        base = None if os.environ.get("SUBLET_NO_CGROUP") else _own()
        if base is None:
            return None
        path = os.path.join(base, f"{PREFIX}{name}")
        try:
            os.mkdir(path)
        except OSError:
            return None
        group = cls(path)
        if not os.path.exists(os.path.join(path, "cgroup.kill")):
            group.close()
            return None
        return group

    @classmethod
    def of(cls, path: object, pid: int, start: int) -> Cgroup | None:
        """The group at `path` if it is the one that this keeper has made."""
        if not isinstance(path, str) or os.path.basename(path) != f"{PREFIX}{pid}-{start}":
            return None
        return cls(path) if path.startswith(f"{_mount()}/") and os.path.isdir(path) else None

    def members(self) -> list[int]:
        """The processes in the group; none if it is gone."""
        try:
            with open(os.path.join(self.path, "cgroup.procs"), encoding="ascii") as file:
                return [int(line) for line in file if line.strip() != "0"]
        except (OSError, ValueError):
            return []

    def enter(self, pid: int) -> bool:
        """Move a process in; its future children are in, too."""
        return self._write("cgroup.procs", str(pid))

    def kill(self) -> bool:
        """End everything in the group."""
        return self._write("cgroup.kill", "1")

    def freeze(self, on: bool) -> bool:
        """Stop everything in the group, including new processes, or let it go on."""
        return self._write("cgroup.freeze", "1" if on else "0")

    def limit_pids(self, most: int) -> bool:
        """Limit processes and threads to this many; False without the controller."""
        return self._write("pids.max", str(most))

    def release(self) -> None:
        """Move everything out, to the parent group."""
        around = Cgroup(os.path.dirname(self.path))
        for pid in self.members():
            around.enter(pid)

    def close(self) -> None:
        """Remove the group, and the groups below it, if no process is left in them."""
        for path, _, _ in os.walk(self.path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)

    def _write(self, name: str, value: str) -> bool:
        path = os.path.join(self.path, name)
        try:
            with open(path, "r+", encoding="ascii") as file:
                file.write(value)
        except OSError:
            return False
        return True


def leave() -> None:
    """Move this process out of a worker's group. For a broker that a program had to start itself:
    what the broker starts is not part of that program's tree."""
    path = _own()
    while path is not None and os.path.basename(path).startswith(PREFIX):
        path = os.path.dirname(path)
        Cgroup(path).enter(os.getpid())


def _own() -> str | None:
    """The directory of the version-2 group this process is in."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            relative = next((row.strip()[3:] for row in file if row.startswith("0::")), None)
    except OSError:
        return None
    mount = _mount()
    if relative is None or mount is None:
        return None
    path = os.path.join(mount, relative.lstrip("/"))
    return path if os.access(path, os.W_OK) else None


def _mount() -> str | None:
    """Where the version-2 groups are mounted."""
    try:
        with open("/proc/self/mounts", encoding="utf-8") as file:
            return next((row.split()[1] for row in file if row.split()[2] == "cgroup2"), None)
    except OSError:
        return None


def all_groups() -> list[Cgroup]:
    """All groups below our own, whoever made them."""
    base = _own()
    if base is None:
        return []
    return [
        Cgroup(os.path.join(base, name)) for name in os.listdir(base) if name.startswith(PREFIX)
    ]
