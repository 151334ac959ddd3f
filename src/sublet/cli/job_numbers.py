"""Job numbers on a command line, such as `13 14 20-25`, and their completion in a shell."""

import contextlib
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from sublet.errors import BadRequest, SubletError

if TYPE_CHECKING:
    from sublet.wire.rows import JobRow

_MOST = 100_000
_SHOWN = 5
_DIGITS = 18
"""Longer numbers fit neither the ledger nor the protocol."""
_EXAMPLE = "Write numbers such as 13, a range such as 20-25, or a name; `sublet ps` lists them."
_LISTED = 1000
"""How many jobs of each kind are looked through for a name."""


def read_numbers(words: tuple[str, ...], option: str = "") -> tuple[int, ...]:
    """The jobs that these words name, in order, each once."""
    found: dict[int, None] = {}
    if empty := [text for text in words if not text.replace(",", " ").split()]:
        raise BadRequest(f"{option}{empty[0]!r} names no job.", _EXAMPLE)
    for word in (part for text in words for part in text.replace(",", " ").split()):
        first, dash, last = word.removeprefix("#").partition("-")
        if not _is_number(first) or (dash and not _is_number(last)):
            found |= dict.fromkeys(_called(word, option))
            continue
        low, high = int(first), int(last or first)
        if high < low:
            raise BadRequest(f"{option}{word!r} ends before it starts.", _EXAMPLE)
        if high - low >= _MOST:
            raise BadRequest(f"{option}{word!r} is more than {_MOST} jobs.", _EXAMPLE)
        found |= dict.fromkeys(range(low, high + 1))
    return tuple(found)


def _called(name: str, option: str) -> list[int]:
    """The job of this name, or all elements of an array of this name; of several none is chosen."""
    alike = _alike(name, option)
    if len({_whole(row) for row in alike}) > 1:
        numbers = ", ".join(f"#{row.id}" for row in alike[:_SHOWN])
        more = f" and {len(alike) - _SHOWN} more" if len(alike) > _SHOWN else ""
        raise BadRequest(f"{len(alike)} jobs are named {name!r}: {numbers}{more}.", _EXAMPLE)
    return [row.id for row in alike]


def _alike(name: str, option: str) -> "list[JobRow]":
    """The jobs of this name; only live ones, if there are any."""
    from sublet.client.jobs import listing

    alike = [
        row
        for row in listing((), _LISTED, _LISTED).rows
        if name in (row.name, row.name.partition("[")[0])
    ]
    if not alike:
        raise BadRequest(f"{option}{name!r} is neither a job number nor a job's name.", _EXAMPLE)
    return [row for row in alike if row.state != "finished"] or alike


def _whole(row: "JobRow") -> object:
    """What stands for the array or gang that the job belongs to, or for the job itself."""
    return row.gang or (row.id if row.array is None else -row.array)


def read_number(word: str) -> int:
    """The one job to look at: a number, or the newest job of this name, a live one if there is."""
    parts = word.replace(",", " ").split()
    if len(parts) != 1 or _is_number(parts[0].removeprefix("#").partition("-")[0]):
        numbers = read_numbers((word,))
    else:
        alike = _alike(parts[0], "")
        newest = _whole(max(alike, key=lambda row: row.id))
        numbers = tuple(row.id for row in alike if _whole(row) == newest)
    if len(numbers) != 1:
        raise BadRequest(f"{word!r} is more than one job.", "Write one number, such as 13.")
    return numbers[0]


def read_indexes(text: str) -> tuple[tuple[int, ...], int]:
    """The indexes of an array and how many at once: `0-9`, `0-9:3`, `1,5,7`, `0-99%4`."""
    spans, _, most = text.partition("%")
    wrong = BadRequest(
        f"--array {text!r} is not a range.", "Write 0-9, 0-9:3 (every third), 1,5,7 or 0-99%4."
    )
    if most and not (_is_number(most) and int(most)):
        raise wrong
    indexes: dict[int, None] = {}
    for part in spans.split(","):
        span, colon, step = part.partition(":")
        first, dash, last = span.partition("-")
        numbers = [first, *([last] if dash else []), *([step] if colon else [])]
        if not all(map(_is_number, numbers)):
            raise wrong
        low, high, stride = int(first), int(last or first), int(step or 1)
        if high < low:
            raise BadRequest(f"--array {part!r} ends before it starts.", wrong.hint)
        if not stride:
            raise wrong
        if (high - low) // stride >= _MOST:
            raise BadRequest(
                f"--array {text!r} is more than {_MOST} jobs.",
                "Submit several arrays, and bound how many run at a time: 0-99%4.",
            )
        indexes |= dict.fromkeys(range(low, high + 1, stride))
    if "%" in text and not most:
        raise wrong
    return tuple(indexes), int(most or 0)


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _DIGITS


def complete(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The jobs that the command can act on; nothing if no broker is running."""
    from sublet.client.connection import connect
    from sublet.home import Home
    from sublet.wire.messages import AskJobs, Jobs

    try:
        if (connection := connect(Home.find())) is None:
            return []
        with contextlib.closing(connection):
            connection.send(AskJobs(live=200, finished=20))
            reply = connection.receive()
    except (OSError, SubletError):
        return []
    if not isinstance(reply, Jobs):
        return []
    verb = context.info_name
    return [
        CompletionItem(str(row.id), help=f"{row.name} {row.state}")
        for row in reply.rows
        if str(row.id).startswith(incomplete)
        and (row.state != "finished" or verb not in ("cancel", "pause", "resume"))
        and (row.state == "finished" or verb != "retry")
    ]
