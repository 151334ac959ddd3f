"""Jobs as lines of at most 80 columns."""

import unicodedata

from sublet.text import plain
from sublet.units import format_bytes, format_seconds
from sublet.wire.messages import Jobs
from sublet.wire.rows import JobRow

_WIDTH = 80
_HEAD = f"{'job':>6}  {'name':<16} {'state':<9} {'lease':>9} {'now':>9} {'peak':>9}  for"
_OF_ITSELF = ("exited", "signalled")
"""Causes of an end after which the program's own output most likely says why."""
_INDENT = 35
"""Where reasons begin, under the amounts."""


def draw(jobs: Jobs, now: float) -> str:
    """A table of these jobs, and a line on those that are not shown."""
    lines = [_HEAD, *(line(row, now) for row in jobs.rows)] if jobs.rows else []
    if not jobs.rows:
        lines.append("no jobs; try: sublet submit train.py")
    if jobs.left_out:
        lines.append(
            f"{jobs.running} running, {jobs.waiting} waiting; {jobs.left_out} not shown: "
            "sublet ps --all"
        )
    return "\n".join(lines)


def line(row: JobRow, now: float) -> str:
    """One job; the reason why it waits or failed goes to further lines."""
    head = f"{'#' + str(row.id):>6}  {_column(row.name, 16)} {_state(row):<9}"
    if row.state == "waiting" or (row.state == "paused" and row.ceiling is None):
        return _with(head, row.reason)
    amounts = " ".join(f"{_amount(value):>9}" for value in (row.ceiling, row.now, row.peak))
    span = row.ran if row.ran is not None else max(0.0, now - (row.since or now))
    text = f"{head} {amounts}"
    tail = format_seconds(span)
    if row.ends_in is not None:
        tail += f", {format_seconds(row.ends_in)} left"
    if row.floor is not None and (row.highest or 0) > row.floor:
        tail += f", grew from {format_bytes(row.floor)}"
    if row.cards:
        tail += f", on {', '.join(card.device for card in row.cards)}"
    if row.within is not None:
        tail += f", in #{row.within}"
    fits = _width(text) + 2 + len(tail) <= _WIDTH
    lines = [f"{text}  {tail}"] if fits else [text, _with("", tail)]
    done = (row.cause == "exited" and row.code == 0) or row.cause == "cancelled"
    failed = row.state == "finished" and not done
    if failed or row.state == "stopping" or (row.state == "running" and row.reason):
        own = row.cause in _OF_ITSELF and not row.by_user
        wrote = failed and own and not row.foreground
        lines.append(_with("", f"{row.reason}; sublet logs {row.id}" if wrote else row.reason))
    return "\n".join(lines)


def _state(row: JobRow) -> str:
    if row.state != "finished":
        return row.state
    if row.by_user or row.cause == "stopped":
        return "stopped"
    if row.cause == "exited":
        return "done" if row.code == 0 else "failed"
    return {"cancelled": "cancelled", "lost": "lost"}.get(row.cause or "", "failed")


def _with(head: str, reason: str) -> str:
    """The head, and the reason to its right in as many lines as it takes."""
    lines = _wrap(plain(reason), _WIDTH - _INDENT)
    if _width(head) >= _INDENT:
        lines.insert(0, "")
    first, *rest = lines
    padding = " " * (_INDENT - _width(head))
    return "\n".join([f"{head}{padding}{first}".rstrip(), *(" " * _INDENT + one for one in rest)])


def _wrap(text: str, most: int) -> list[str]:
    """Lines of at most this many columns; a longer word is cut."""
    lines = [""]
    for word in text.split():
        if lines[-1] and _width(lines[-1]) + 1 + _width(word) <= most:
            lines[-1] += f" {word}"
            continue
        if lines[-1]:
            lines.append("")
        if _width(word) <= most:
            lines[-1] = word
            continue
        for character in word:
            if _width(lines[-1]) + _width(character) > most:
                lines.append("")
            lines[-1] += character
    return lines


def _amount(value: int | None) -> str:
    return "-" if value is None else format_bytes(value)


def _column(text: str, most: int) -> str:
    """The text cut or padded to exactly this many columns."""
    text = plain(text)
    if _width(text) > most:
        while _width(text) > most - 1:
            text = text[:-1]
        text += "…"
    return text + " " * (most - _width(text))


def _width(text: str) -> int:
    """How many columns the text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )
