"""Rows as the page gets them: text that somebody else wrote is short, and hides nothing."""

from msgspec.structs import replace

from sublet.text import plain
from sublet.units import shorten
from sublet.wire.rows import JobRow, LeaseEventRow

_LONGEST_NAME = 200
_LONGEST_TEXT = 1000


def shown_name(name: str) -> str:
    """A name in one line, with nothing unseen in it."""
    return plain(shorten(name, _LONGEST_NAME))


def shown_text(text: str) -> str:
    """A sentence in one line, with nothing unseen in it."""
    return plain(shorten(text, _LONGEST_TEXT))


def shown_job(row: JobRow) -> JobRow:
    """A job's row for the page."""
    return replace(
        row,
        name=shown_name(row.name),
        reason=shown_text(row.reason),
        basis=shown_text(row.basis),
        how=shown_text(row.how),
    )


def shown_event(row: LeaseEventRow) -> LeaseEventRow:
    """An event's row for the page."""
    return replace(row, name=shown_name(row.name), text=shown_text(row.text))
