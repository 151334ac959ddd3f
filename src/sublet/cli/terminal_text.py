"""What goes to a terminal, and was written by others: names and errors of models and servers.

A name is made plain where it is put into a line, so that it cannot make up lines of its own. All
that is said goes through here once more, so that nothing is missed.
"""

import sys
from typing import Any

import click

from sublet.text import plain


def say(text: str, err: bool = False) -> None:
    """Print lines of which some words are somebody else's."""
    click.echo(plain_lines(text), err=err)


def tell(text: str) -> None:
    """The same as a message of ours, on stderr and at once. Its other lines are told from the first
    lines of other messages."""
    told = plain_lines(text).replace("\n", "\n        ")
    print(f"sublet: {told}", file=sys.stderr, flush=True)


def say_json(document: Any, indent: int | None = None) -> None:
    """For programs, and for terminals too: in ASCII."""
    import json

    import msgspec

    # By way of msgspec, which knows our records, and has null for what JSON has no number for.
    click.echo(json.dumps(json.loads(msgspec.json.encode(document)), indent=indent))


def plain_lines(text: str) -> str:
    """Each line of it made plain."""
    return "\n".join(map(plain, text.split("\n")))
