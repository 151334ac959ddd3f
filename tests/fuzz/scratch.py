"""A directory for one target, and a watch over what it does to other processes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

_held: list["TemporaryDirectory[str]"] = []


def directory() -> Path:
    """A new one; gone when the process ends."""
    _held.append(TemporaryDirectory(prefix="sublet-fuzz-"))
    return Path(_held[-1].name)


class Harm(Exception):
    """A signal was sent to a process that is none of ours. It was not delivered."""


@contextmanager
def nobody_is_hurt() -> Iterator[None]:
    """Raises Harm at the dedent if something within sent a signal to another process."""
    before = os.kill, os.killpg
    sent: list[tuple[int, int]] = []

    def kill(pid: int, number: int) -> None:
        sent.append((pid, number))

    os.kill = os.killpg = kill
    try:
        yield
    finally:
        os.kill, os.killpg = before
    if hurt := [one for one in sent if one[1]]:
        raise Harm(f"signals to {hurt}")
