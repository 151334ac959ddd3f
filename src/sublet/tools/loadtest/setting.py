"""How a model's batches are made: one point of the search, and the file that it ends in."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from sublet.engine.model_options import LARGEST, powers
from sublet.errors import BadRequest, WorldError

FILE = "batching_params.pbtxt"
"""In the directory of a version, as in TensorFlow Serving."""


class Setting(Struct, frozen=True):
    """How batches are made; the defaults are the engine's."""

    largest: int = LARGEST  # max_batch_size.
    micros: int = 0  # batch_timeout_micros.
    padded: bool = False
    """Whether batches are filled up to a power of two: allowed_batch_sizes."""

    @property
    def sizes(self) -> tuple[int, ...]:
        return powers(self.largest) if self.padded else ()

    def options(self) -> dict[str, Any]:
        """The setting as an engine's options."""
        if self == Setting():
            return {}
        options: dict[str, Any] = {
            "max_batch_size": self.largest,
            "batch_timeout_micros": self.micros,
        }
        return options | ({"allowed_batch_sizes": list(self.sizes)} if self.padded else {})

    def text(self, notes: Sequence[str] = ()) -> str:
        """The setting as a batching file of TensorFlow Serving (text proto)."""
        numbers = {name: one for name, one in self.options().items() if isinstance(one, int)}
        lines = [f"# {note}" for note in notes]
        lines += [f"{name} {{ value: {value} }}" for name, value in numbers.items()]
        return "\n".join([*lines, *(f"allowed_batch_sizes: {size}" for size in self.sizes)]) + "\n"

    def __str__(self) -> str:
        wait = f"wait {self.micros / 1000:g} ms" if self.micros else "no wait"
        rows = "1 row" if self.largest == 1 else f"{self.largest} rows"
        text = f"{rows}, {wait}{', padded' if self.padded else ''}"
        return f"{text} (defaults)" if self == Setting() else text


def check(path: Path, force: bool) -> None:
    """Refuse a file that could not be written later, before anything is measured."""
    if path.is_dir():
        raise BadRequest(f"{path} is a directory.", "Name a file: --output FILE.")
    if path.exists() and not force:
        raise BadRequest(
            f"{path} is there already.", "Name another one with --output, or say --force."
        )
    if not os.access(path.parent, os.W_OK | os.X_OK):
        reason = "may not be written to" if path.parent.is_dir() else "is no directory"
        raise BadRequest(f"{path.parent} {reason}.", "Name another place: --output FILE.")


def write(path: Path, text: str, force: bool) -> None:
    """All of it or nothing; a server that reads it meanwhile finds the old one or the new one."""
    check(path, force)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if force:
            part.replace(path)
        else:
            # Unlike a rename, this does not replace what somebody has written meanwhile.
            path.hardlink_to(part)
    except OSError as error:
        check(path, force)
        raise WorldError(
            f"{path} cannot be written: {error.strerror}.", "Name another place."
        ) from None
    finally:
        part.unlink(missing_ok=True)
