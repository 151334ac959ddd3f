"""Lays out tables by the width of the terminal.

Where there is little room, texts that may be cut give way first, then whole columns. Numbers, sizes
and whatever else people copy are never cut.
"""

import os
import shutil
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TextIO

GAP = "  "
UNBOUNDED = 10_000
"""The width of output that goes to a file or a pipe: nothing is left out."""
_LEAST_REST = 8
"""How narrow a text may become that takes the rest of its line."""


@dataclass(frozen=True)
class Column:
    """One column. `rank` says how soon it is left out: 0 never, the highest first."""

    title: str
    right: bool = False
    rank: int = 0
    least: int | None = None
    """How narrow it may become by cutting its texts; None: they are never cut."""


def width_of(stream: TextIO) -> int:
    """How many columns the output may take."""
    if not stream.isatty() and not os.environ.get("COLUMNS", "").isdecimal():
        return UNBOUNDED
    return max(20, shutil.get_terminal_size().columns)


def array_name(first: str, last: str) -> str:
    """The name of all jobs of an array from the first to the last of them: train.py[2-9]."""
    base, bracket, index = last.rpartition("[")
    alike = bracket and first.startswith(f"{base}[") and first != last
    return f"{first[:-1]}-{index}" if alike else first


def lay_out(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The lines of the table, titles first. A column in which all is empty is left out.

    A row with fewer cells than there are columns ends with a text that takes the rest of its line.
    """
    line = line_writer(columns, rows, width)
    return [line([column.title for column in columns]), *map(line, rows)]


def line_writer(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> Callable[[Sequence[str]], str]:
    """What makes a line of the table from a row: for long tables of which few lines are seen."""
    shown, widths = _choose(columns, rows, width)
    return lambda row: _line(columns, shown, widths, row, width)


def to_html(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """The whole table for a notebook."""

    def cells(tag: str, row: Sequence[str]) -> str:
        parts = []
        for number, text in enumerate(row):
            align = "right" if columns[number].right else "left"
            rest = len(columns) - number
            wide = f' colspan="{rest}"' if number == len(row) - 1 and rest > 1 else ""
            parts.append(f'<{tag} style="text-align:{align}"{wide}>{escape(text)}</{tag}>')
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(cells("td", row) for row in rows)
    head = cells("th", [column.title for column in columns])
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def text_width(text: str) -> int:
    """How many columns the text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )


def cut(text: str, width: int) -> str:
    """The text in at most this many columns, with a sign where the rest is missing."""
    if text_width(text) <= width:
        return text
    if text.isascii():
        text = text[: max(0, width - 1)]
    while text and text_width(text) > width - 1:
        text = text[:-1]
    return text.rstrip() + "…"


def _choose(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> tuple[list[int], list[int]]:
    """Which columns are shown, and how wide each column is."""
    widths = []
    shown = []
    for number, column in enumerate(columns):
        cells = [row[number] for row in rows if _has(row, number, columns)]
        if any(cells):
            shown.append(number)
        widths.append(max(map(text_width, [column.title, *cells])))
    least = [
        natural if column.least is None else min(natural, max(column.least, len(column.title)))
        for natural, column in zip(widths, columns, strict=True)
    ]
    while _total(shown, least) > width and any(columns[number].rank for number in shown):
        shown.remove(max(shown, key=lambda number: columns[number].rank))
    _narrow(shown, widths, least, width)
    for tail in {len(row) - 1 for row in rows if len(row) < len(columns)}:
        before = [number for number in shown if number < tail]
        _narrow(before, widths, least, width - len(GAP) - _LEAST_REST)
    return shown, widths


def _narrow(numbers: Sequence[int], widths: list[int], least: Sequence[int], width: int) -> None:
    """Cut texts of these columns, the last one's first, so that together they fit the width."""
    for number in reversed(numbers):
        if (over := _total(numbers, widths) - width) > 0:
            widths[number] = max(least[number], widths[number] - over)


def _has(row: Sequence[str], number: int, columns: Sequence[Column]) -> bool:
    """Whether the row has a cell of this column, and not a text that goes on to the end."""
    return number < len(row) and (len(row) == len(columns) or number < len(row) - 1)


def _total(shown: Sequence[int], widths: Sequence[int]) -> int:
    return sum(widths[number] for number in shown) + len(GAP) * (len(shown) - 1)


def _line(
    columns: Sequence[Column],
    shown: Sequence[int],
    widths: Sequence[int],
    row: Sequence[str],
    width: int,
) -> str:
    cells = []
    for number in shown:
        if not _has(row, number, columns):
            break
        text = cut(row[number], widths[number])
        padding = " " * (widths[number] - text_width(text))
        cells.append(padding + text if columns[number].right else text + padding)
    if len(row) < len(columns):
        room = width - sum(map(text_width, cells)) - len(GAP) * len(cells)
        cells.append(cut(row[-1], max(room, _LEAST_REST)))
    return GAP.join(cells).rstrip()
