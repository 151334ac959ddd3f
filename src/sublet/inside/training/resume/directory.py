"""The checkpoints of one run: a directory with the two latest.

Each is one zip file. It is written under another name, and gets its own when it is on the disk: so
whatever ends the program, the checkpoint before stays as it was. What is read is held against its
checksums before anything is made of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterable
from typing import IO, Any

from ...current_lease import say
from ..refused import Refused
from .values import Array

_FORMAT = 1
_KEPT = 2
_NAME = re.compile(r"checkpoint-(\d+)\.zip")
_STATE = "state.json"
_DRAFT = ".checkpoint.draft"
_LOCK = ".lock"
_SCRATCH = ".scratch"


class Damaged(Exception):
    """Says what is wrong with a file."""


class Checkpoint:
    """One that was found whole: its fields, its arrays by number, and files beside them."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
            broken = self._archive.testzip()
            if broken is not None:
                raise Damaged(f"{broken} in it has another checksum")
            state = json.loads(self._archive.read(_STATE))
            self.format = int(state["format"])
            self.fields: dict[str, Any] = state["fields"]
            self._arrays: list[tuple[str, list[int]]] = state["arrays"]
        except (OSError, zipfile.BadZipFile, EOFError, NotImplementedError) as wrong:
            raise Damaged(str(wrong)) from None
        except (KeyError, TypeError, ValueError):
            raise Damaged("it is no checkpoint") from None

    def array(self, number: int) -> Any:
        """The array of that number; not to be written to."""
        import numpy as np

        kind, shape = self._arrays[number]
        return np.frombuffer(self._archive.read(f"arrays/{number}"), _dtype(kind)).reshape(shape)

    def extract(self, directory: str, name: str) -> str:
        """Put the files of that name, with any endings, into a directory; returns how they begin
        there. Empty if there are none."""
        prefix = f"files/{name}."
        names = [one for one in self._archive.namelist() if one.startswith(prefix)]
        self._archive.extractall(directory, names)
        return os.path.join(directory, "files", name) if names else ""

    def close(self) -> None:
        """Give the file back."""
        self._archive.close()


class Directory:
    """The directory of one run, while one process trains in it. Others may read it meanwhile."""

    def __init__(self, path: str, reads: bool = False) -> None:
        self.shown = os.fspath(path)
        self.path = os.path.abspath(self.shown)
        self._reads = reads
        self._lock: IO[str] | None = None

    def __enter__(self) -> Directory:
        """Make the directory, and see that it can be written to, by nobody else. Raises Refused."""
        if self._reads:
            return self
        try:
            os.makedirs(self.path, exist_ok=True)
            self._lock = open(os.path.join(self.path, _LOCK), "a+", encoding="ascii")
        except OSError as wrong:
            raise Refused(
                f"{self.shown} cannot be written to: {wrong.strerror}.",
                "Name a directory of your own as checkpoint.",
            ) from None
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            self._lock.seek(0)
            holder = self._lock.read(20).strip() or "unknown"
            self._lock.close()
            raise Refused(
                f"Another process trains in {self.shown} (pid {holder}).",
                "Wait for it, or name another directory.",
            ) from None
        except OSError:
            pass  # A file system without locks.
        with contextlib.suppress(OSError):  # A full disk.
            self._lock.truncate(0)
            self._lock.write(f"{os.getpid()}\n")
            self._lock.flush()
        self.clear_scratch()
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self.clear_scratch()
            self._lock.close()

    @property
    def scratch(self) -> str:
        """An empty directory for files that become part of a checkpoint."""
        path = os.path.join(self.path, _SCRATCH)
        self.clear_scratch()
        os.mkdir(path)
        return path

    def clear_scratch(self) -> None:
        """Delete what is left of a checkpoint that was not finished."""
        shutil.rmtree(os.path.join(self.path, _SCRATCH), ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.path, _DRAFT))

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; None if there is none. Raises Refused if there are
        some, and none of them can be read."""
        why = ""
        for number in reversed(self._numbers()):
            try:
                found = Checkpoint(self._path_of(number))
            except Damaged as wrong:
                why = f"{os.path.join(self.shown, self._name_of(number))} is damaged: {wrong}"
                say(why)
                continue
            if found.format != _FORMAT:
                raise Refused(
                    f"{found.path} was written by another version of Sublet.",
                    "Go on with that one, or name another directory.",
                )
            return found
        if why:
            raise Refused(f"{why}.", "Delete it to begin anew, or name another directory.")
        return None

    def save(self, fields: dict[str, Any], arrays: Iterable[Array], files: Iterable[str]) -> None:
        """Write the next checkpoint, and delete all but the latest two. Raises OSError if it cannot
        be written: then those before are all still there."""
        draft = os.path.join(self.path, _DRAFT)
        number = max(self._numbers(), default=0) + 1
        try:
            with open(draft, "wb") as file:
                _write(file, fields, arrays, files)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self._path_of(number))
        finally:
            self.clear_scratch()
        _sync(self.path)
        for old in self._numbers()[:-_KEPT]:
            with contextlib.suppress(OSError):
                os.unlink(self._path_of(old))

    def _numbers(self) -> list[int]:
        names = os.listdir(self.path) if os.path.isdir(self.path) else []
        found = map(_NAME.fullmatch, names)
        return sorted(int(match[1]) for match in found if match)

    @staticmethod
    def _name_of(number: int) -> str:
        return f"checkpoint-{number:06d}.zip"

    def _path_of(self, number: int) -> str:
        return os.path.join(self.path, self._name_of(number))


def _write(
    file: IO[bytes], fields: dict[str, Any], arrays: Iterable[Array], files: Iterable[str]
) -> None:
    import numpy as np

    kinds = []
    with zipfile.ZipFile(file, "w") as archive:
        for number, array in enumerate(arrays):
            value = np.asarray(array())
            kinds.append((value.dtype.name, list(value.shape)))
            with _member(archive, f"arrays/{number}") as member:
                member.write(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        for path in files:
            name = f"files/{os.path.basename(path)}"
            with open(path, "rb") as source, _member(archive, name) as member:
                shutil.copyfileobj(source, member)
        with _member(archive, _STATE) as member:
            state = {"format": _FORMAT, "fields": fields, "arrays": kinds}
            member.write(json.dumps(state).encode())


def _member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    return archive.open(zipfile.ZipInfo(name), "w", force_zip64=True)


def _dtype(name: str) -> Any:
    """The type of that name, also one that NumPy does not have itself (bfloat16)."""
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:
        import tensorflow as tf

        return np.dtype(tf.as_dtype(name).as_numpy_dtype)


def _sync(directory: str) -> None:
    """Have the new name on the disk, too, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
