"""Prints text that others wrote: names of jobs and models, errors, what engines say.

Such text may hold control characters. A name is made plain where it is put into a line, so that it
cannot start a line of its own; everything printed goes through here once more.
"""

import sys
from typing import Any

import click

from sublet.text import plain


def say(text: str, err: bool = False) -> None:
    """Print lines, each made plain."""
    click.echo(plain_lines(text), err=err)


def tell(text: str) -> None:
    """Print a message of Sublet's on stderr, further lines indented."""
    lines = plain_lines(text).replace("\n", "\n        ")
    print(f"sublet: {lines}", file=sys.stderr, flush=True)


def print_json(document: Any, indent: int | None = None) -> None:
    """Print JSON for programs, in ASCII, so that it is safe on a terminal, too."""
    import json

    import msgspec

    # msgspec knows our records, and writes null for NaN and infinity.
    click.echo(json.dumps(json.loads(msgspec.json.encode(document)), indent=indent))


def plain_lines(text: str) -> str:
    """The text with each line made plain."""
    return "\n".join(map(plain, text.split("\n")))
