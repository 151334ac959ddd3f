"""The directory of a program, for nodes that do not have it.

A node has it if its script is the same file there, on a disk that both see, or if the same files
are there under the same path, by size and time of change, as rsync compares them. Otherwise it is
sent whole, and unpacked below the node's home.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

from sublet.errors import BadRequest
from sublet.units import format_bytes

LARGEST = 100 << 20
"""Bytes of files that are sent."""
MOST_FILES = 20_000
_LEFT_OUT = {".git", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".pytest_cache"}

Package = dict[str, Any]
"""`root` and `script` as bytes, the script's `identity`, `files` as (name, size, time of change),
`size` of all of them, and `digest` of their contents' list; `whole` is False if there are too many
to list."""


def describe(spec: dict[str, Any]) -> Package:
    """What a program needs of this machine's files: its working directory, if its script is in
    there, or else the script's own."""
    cwd, program = spec["surroundings"]["cwd"], spec["program"]
    root = os.path.realpath(cwd)
    script = b""
    if program["kind"] == "script":
        script = os.path.realpath(os.path.join(cwd, program["target"]))
        if not (script + b"/").startswith(root.rstrip(b"/") + b"/"):
            root = os.path.dirname(script)
    files, size, whole = [], 0, True
    for directory, names, found in os.walk(root):
        names[:] = sorted(name for name in names if os.fsdecode(name) not in _LEFT_OUT)
        for name in sorted(found):
            path = os.path.join(directory, name)
            try:
                stat = os.stat(path)
            except OSError:
                continue
            if not os.path.isfile(path):
                continue
            files.append((os.path.relpath(path, root), stat.st_size, stat.st_mtime_ns))
            size += stat.st_size
        if len(files) > MOST_FILES:
            whole = False
            break
    digest = hashlib.blake2b(repr((root, files)).encode(), digest_size=12).hexdigest()
    return {
        "root": root,
        "script": script,
        "identity": _identity(script),
        "files": files if whole else [],
        "size": size,
        "whole": whole,
        "digest": digest,
    }


def _identity(script: bytes) -> list[int]:
    """What no copy of a file has in common with it; empty without a script."""
    try:
        stat = os.stat(script)
    except OSError:
        return []
    return [stat.st_ino, stat.st_ctime_ns, stat.st_mtime_ns, stat.st_size]


def is_here(package: Package) -> bool:
    """Whether this machine has the same files under the same path. Of too many to be listed, the
    script stands for all."""
    root = package["root"]
    if package["identity"] and package["identity"] == _identity(package["script"]):
        return True  # Whatever programs write beside it meanwhile.
    if not package["whole"]:
        return os.path.isdir(root) and os.path.exists(package["script"] or root)
    try:
        return os.path.isdir(root) and all(
            (stat := os.stat(os.path.join(root, name))).st_size == size
            and stat.st_mtime_ns == changed
            for name, size, changed in package["files"]
        )
    except OSError:
        return False


def pack(package: Package) -> bytes:
    """All of the files, for `unpack`; refused if they are too many or too large."""
    root = os.fsdecode(package["root"])
    if not package["whole"] or package["size"] > LARGEST:
        what = (
            f"{format_bytes(package['size'])}; at most {format_bytes(LARGEST)} are sent"
            if package["whole"]
            else f"more than {MOST_FILES:,} files"
        )
        raise BadRequest(
            f"The nodes do not have {root}, and it has {what}.",
            "Start it in a smaller directory, or put this one on the nodes under the same path.",
        )
    import io
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for name, _, _ in package["files"]:
            path = os.path.join(package["root"], name)
            archive.add(os.fsdecode(path), os.fsdecode(name), recursive=False)
    return buffer.getvalue()


def place(home: Path, package: Package) -> Path:
    """Where its files are on a node that was sent them."""
    return home / "ray" / "files" / str(package["digest"])


def unpack(home: Path, package: Package, data: bytes) -> None:
    """Put its files there, whole or not at all."""
    import io
    import tarfile

    there = place(home, package)
    if there.is_dir():
        return
    new = there.with_name(f"{there.name}.{os.getpid()}.new")
    new.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        archive.extractall(new, filter="data")
    try:
        new.rename(there)
    except OSError:
        if not there.is_dir():
            raise


def moved(spec: dict[str, Any], package: Package, there: Path) -> dict[str, Any]:
    """The spec with its script and its directory where they are on this node."""
    root, target = package["root"], os.fsencode(there)

    def move(path: bytes) -> bytes:
        real = os.path.realpath(path)
        if real == root:
            return target
        inside = os.path.relpath(real, root)
        return target if inside.startswith(b"..") else os.path.join(target, inside)

    cwd, program = spec["surroundings"]["cwd"], spec["program"]
    if program["kind"] == "script":
        script = move(os.path.join(cwd, program["target"]))
        program = program | {"target": script}
    return spec | {"program": program, "surroundings": spec["surroundings"] | {"cwd": move(cwd)}}
