"""Jobs as lines of at most 80 columns."""

import textwrap

from sublet.units import format_bytes, format_seconds
from sublet.wire.messages import JobRow, Jobs

_WIDTH = 80
_HEAD = f"{'job':>6}  {'name':<16} {'state':<9} {'lease':>9} {'now':>9} {'peak':>9}  for"
_INDENT = 25


def draw(jobs: Jobs, now: float) -> str:
    """All of them, with a word on what is not shown."""
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
    """One job; what it waits for or how it failed goes to further lines."""
    head = f"{'#' + str(row.id):>6}  {_short(row.name, 16):<16} {_state(row):<9}"
    if row.state in ("waiting",) or (row.state == "paused" and row.ceiling is None):
        return _wrapped(head, row.reason)
    amounts = " ".join(f"{_amount(value):>9}" for value in (row.ceiling, row.now, row.peak))
    span = row.ran if row.ran is not None else max(0.0, now - (row.since or now))
    text = f"{head} {amounts}  {format_seconds(span)}"
    if row.ends_in is not None:
        text += f", {format_seconds(row.ends_in)} left"
    failed = row.state == "finished" and not (row.cause == "exited" and row.code == 0)
    if failed or row.state == "stopping":
        return f"{text}\n{_wrapped(' ' * _INDENT, row.reason)}"
    return text


def _state(row: JobRow) -> str:
    if row.state != "finished":
        return row.state
    if row.cause == "exited":
        return "done" if row.code == 0 else "failed"
    return {"cancelled": "cancelled", "lost": "lost"}.get(row.cause or "", "failed")


def _wrapped(head: str, reason: str) -> str:
    lines = textwrap.wrap(reason, _WIDTH - _INDENT - 11) or [""]
    rest = [f"{' ' * (_INDENT + 10)}{line}" for line in lines[1:]]
    return "\n".join([f"{head:<{_INDENT + 9}} {lines[0]}", *rest])


def _amount(value: int | None) -> str:
    return "-" if value is None else format_bytes(value)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
