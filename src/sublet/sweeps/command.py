"""The command line of a trial: a program, and its parameters as arguments."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def arguments(
    words: Sequence[str], params: Mapping[str, Any], number: int, directory: Path
) -> list[str]:
    """The words behind a program's name. `{lr}` is replaced by the parameter, `{trial}` by the
    trial's number and `{dir}` by a directory of its own; a parameter that is named nowhere is added
    as `--lr 0.1`."""
    known = {name: text(value) for name, value in params.items()}
    places = {**known, "trial": str(number), "dir": str(directory)}
    written = []
    for word in words:
        for name, value in places.items():
            word = word.replace(f"{{{name}}}", value)
        written.append(word)
    for name, value in known.items():
        if not any(f"{{{name}}}" in word for word in words):
            written += [f"{'-' if len(name) == 1 else '--'}{name}", value]
    return written


def text(value: Any) -> str:
    """A value as it is typed."""
    return str(value)
