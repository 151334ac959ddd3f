"""Prints text that others wrote: names of jobs and models, errors, what engines say.

Such text may hold control characters. A name is made plain where it is put into a line, so that it
cannot start a line of its own; everything printed goes through here once more.
"""

import os
import sys
from typing import Any

import click

from sublet.text import plain


def say(text: str, err: bool = False) -> None:
    """Print lines, each made plain."""
    # Not by click, which would choose another encoding than the terminal's.
    print(plain_lines(text), file=sys.stderr if err else sys.stdout, flush=True)


def show(text: str) -> None:
    """Print lines in which foreign text is already plain; in colour on a terminal."""
    colorless = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    print(click.unstyle(text) if colorless or not sys.stdout.isatty() else text, flush=True)


def tell(text: str) -> None:
    """Print a message of Sublet's on stderr, further lines indented."""
    lines = plain_lines(text).replace("\n", "\n        ")
    print(f"sublet: {lines}", file=sys.stderr, flush=True)


_SCHEMA = 1
"""Counts up when a field of the JSON that is printed changes its meaning or goes away."""
_WORDS = {
    "lodger": "in_process",
    "run": "attempt_id",
    "standing": "nursery",
    "strangers": "others",
}
"""Fields that have another name on the wire than in tables and in Python."""


def print_json(document: Any, indent: int | None = None) -> None:
    """Print an object as JSON for programs, in ASCII, so that it is safe on a terminal, too."""
    import json

    import msgspec

    # msgspec knows our records, and writes null for NaN and infinity.
    fields = json.loads(msgspec.json.encode(document), object_hook=_with_our_words)
    fields.pop("type", None)
    click.echo(json.dumps({"schema": _SCHEMA, **fields}, indent=indent))


def _with_our_words(fields: dict[str, Any]) -> dict[str, Any]:
    return {_WORDS.get(name, name): value for name, value in fields.items()}


def plain_lines(text: str) -> str:
    """The text with each line made plain."""
    return "\n".join(map(plain, text.split("\n")))
