"""The memory limit of the cgroup this process lives in: the real size of a container.

Only reads. Cgroup v1, v2 and the two side by side are understood; a machine without cgroups has no
limit.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Limit(NamedTuple):
    """The most that the cgroup may use, and what it uses that the kernel could not take back."""

    most: int
    used: int


class _Files(NamedTuple):
    most: str
    used: str
    reclaimable: str


_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files("memory.max", "memory.current", "inactive_file")

# Version 1 writes "no limit" as the largest number of whole pages, which is above this.
_UNLIMITED = 2**62


def memory_limit(proc: Path = Path("/proc/self")) -> Limit | None:
    """The tightest limit on our cgroup or one above it, or None where nothing limits us."""
    try:
        limited = [(_most(node / files.most), node, files) for node, files in _nodes(proc)]
        most, node, files = min(limited)
        return Limit(most, _used(node, files)) if most < _UNLIMITED else None
    except (OSError, ValueError):
        # No cgroups, or a layout that is not understood: then the machine's RAM is the bound.
        return None


def _nodes(proc: Path) -> Iterator[tuple[Path, _Files]]:
    """Our cgroups and all above them that can be seen from here."""
    ours = _memberships((proc / "cgroup").read_text())
    for line in (proc / "mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        root, point = mount.split()[3:5]
        filesystem, *_, options = kind.split()
        if filesystem == "cgroup2" and "" in ours:
            path, files = ours[""], _V2
        elif filesystem == "cgroup" and "memory" in ours and "memory" in options.split(","):
            path, files = ours["memory"], _V1
        else:
            continue
        yield from ((node, files) for node in _upwards(Path(point), root, path))


def _memberships(text: str) -> dict[str, str]:
    """Controller → path of our cgroup; v2 has the empty controller."""
    paths = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _upwards(point: Path, root: str, path: str) -> Iterator[Path]:
    # In a container without a cgroup namespace the path is the host's, and the mount shows only
    # the part below `root`. A path outside of what is mounted leaves the mount point itself.
    base = root.rstrip("/")
    within = path.removeprefix(base) if f"{path}/".startswith(f"{base}/") else ""
    node = point / within.lstrip("/") if ".." not in within else point
    while node != point:
        yield node
        node = node.parent
    yield point


def _most(file: Path) -> int:
    # The root cgroup has no such file, and a hidden parent cannot be read.
    try:
        text = file.read_text().strip()
    except OSError:
        return _UNLIMITED
    return _UNLIMITED if text == "max" else int(text)


def _used(node: Path, files: _Files) -> int:
    used = int((node / files.used).read_text())
    counters = dict(line.split() for line in (node / "memory.stat").read_text().splitlines())
    return max(0, used - int(counters.get(files.reclaimable, 0)))
