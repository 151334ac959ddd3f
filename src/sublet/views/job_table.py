"""Jobs as a table, one line each, and one job with all that is known of it."""

import signal
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from sublet.text import plain
from sublet.units import format_bytes, format_seconds
from sublet.views.table import Column, array_name, lay_out, to_html
from sublet.wire.messages import Jobs
from sublet.wire.rows import JobRow

COLUMNS = (
    Column("job", right=True),
    Column("name", least=8),
    Column("state"),
    Column("on", rank=4),
    Column("lease", right=True),
    Column("now", right=True, rank=3),
    Column("peak", right=True, rank=1),
    Column("elapsed", right=True),
    Column("exit", right=True, rank=2),
    Column("note", rank=5, least=12),
)
_SHORT_CAUSES = {"lease exceeded": "memory", "time limit": "time", "lost": "lost"}
"""What the column `exit` says of an end that was not the program's own."""


def draw(jobs: Jobs, now: float, width: int, live: int, finished: int) -> str:
    """A table with at most so many lines of live and of finished jobs, and what it leaves out.

    Neighbours of one array or cluster that are alike share a line; the tasks of a cluster are
    neighbours.
    """
    if not jobs.rows:
        return "no jobs; try: sublet submit train.py"
    groups = grouped(jobs.rows)
    ended = [group for group in groups if group[0].state == "finished"]
    others = [group for group in groups if group[0].state != "finished"]
    shown = [*ended[-finished:], *others[:live]]
    lines = lay_out(COLUMNS, [cells(group, now) for group in shown], width)
    for told in _findings(shown):
        lines += textwrap.wrap(told, width, subsequent_indent="  ", break_on_hyphens=False)
    failed = [group[-1] for group in shown if _failed(group[-1])]
    if failed:
        lines.append(f"how a job ended: sublet ps {failed[-1].id}")
    hidden = jobs.left_out + sum(map(len, others[live:]))
    if hidden:
        lines.append(
            f"{jobs.running} running, {jobs.waiting} waiting; {hidden} not shown: sublet ps --all"
        )
    elif len(ended) > finished:
        lines.append("more have ended: sublet ps --all")
    return "\n".join(lines)


def _findings(groups: Sequence[Sequence[JobRow]]) -> list[str]:
    """What is wrong with tasks of clusters, which is too long for a column; what is true of several
    is said of the first."""
    found: dict[tuple[int, str], str] = {}
    for row in (row for group in groups for row in group):
        if row.gang and row.state == "running" and row.reason:
            key = (row.gang[0], row.reason)
            found.setdefault(key, plain(f"{row.role} {row.role_index} (#{row.id}) {row.reason}"))
    return list(found.values())


def grouped(rows: Sequence[JobRow]) -> list[list[JobRow]]:
    """The jobs of each line: neighbours of one array or cluster that are alike share one."""
    return [list(group) for _, group in groupby(_with_their_gangs(rows), _likeness)]


def _with_their_gangs(rows: Sequence[JobRow]) -> list[JobRow]:
    """The rows with those of one cluster side by side, where the last of them stands."""
    at = {_cluster(row): place for place, row in enumerate(rows)}
    return sorted(rows, key=lambda row: (row.state != "finished", at[_cluster(row)], row.id))


def _cluster(row: JobRow) -> tuple[object, ...]:
    """What the tasks of a cluster have in common; those that have finished stand apart."""
    return (row.gang or (row.id,), row.state == "finished")


def sentence(row: JobRow) -> str:
    """How a job ended, in one line."""
    parts = [plain(row.reason)]
    if row.ran is not None:
        parts.append(f"ran {format_seconds(row.ran)}")
    if row.peak is not None:
        parts.append(f"peak {format_bytes(row.peak)}")
    return f"#{row.id} {plain(row.name)}: {', '.join(parts)}"


def details(row: JobRow, now: float, width: int) -> str:
    """Everything about one job, a line for each fact."""
    lines = [f"#{row.id} {plain(row.name)}"]
    for name, text in _facts(row, now):
        first = f"  {name:<9}"
        lines += textwrap.wrap(text, width, initial_indent=first, subsequent_indent=" " * 11)
    return "\n".join(lines)


def details_html(row: JobRow, now: float) -> str:
    """The details of a job, as HTML for a notebook."""
    columns = (Column(f"#{row.id}"), Column(plain(row.name)))
    return to_html(columns, list(_facts(row, now)))


def _facts(row: JobRow, now: float) -> Iterator[tuple[str, str]]:
    """What is known of a job, each fact with its name."""
    facts = [("state", state(row)), ("reason", "" if row.reason == "done" else row.reason)]
    if row.code is not None:
        facts.append(("exit", f"{row.code}" if row.cause == "exited" else _exit(row)))
    facts.append(("memory", f"{row.memory} (as asked)"))
    if row.ceiling is not None:
        grew = row.floor is not None and (row.highest or 0) > row.floor
        growth = f", grew from {format_bytes(row.floor or 0)}" if grew else ""
        where = " and ".join(card.device for card in row.cards) or row.device
        facts.append(("lease", f"{format_bytes(row.ceiling)} on {where}{growth}"))
        facts.append(("sized", row.basis))
        facts.append(("charge", _amount(row.charge)))
    elif row.device:
        facts.append(("device", row.device))
    facts += [
        ("now", _amount(row.now, "")),
        ("peak", _amount(row.peak, "")),
        ("waited", "" if row.waited is None else format_seconds(row.waited)),
        ("ran", _elapsed(row, now)),
        ("limit", "" if row.time is None else format_seconds(row.time)),
        ("attempt", str(row.attempt)),
        ("started", row.how),
        ("pid", str(row.pid or "")),
        ("class", row.service if row.service != "guaranteed" else ""),
        ("priority", row.priority if row.priority != "normal" else ""),
        ("after", " ".join(f"#{number}" for number in row.after)),
        ("array", "" if row.array is None else f"#{row.array}, index {row.index}"),
        ("cluster", _place_in_cluster(row)),
        ("within", "" if row.within is None else f"the lease of #{row.within}"),
        ("see", f"sublet explain {row.id}" + ("" if row.foreground else f"; sublet logs {row.id}")),
    ]
    yield from ((name, plain(text)) for name, text in facts if text)


def state(row: JobRow) -> str:
    """The state of a job in the words of the table."""
    if row.state != "finished":
        return row.state
    if row.by_user or row.cause == "stopped":
        return "stopped"
    if row.cause == "exited":
        return "done" if row.code == 0 else "failed"
    return {"cancelled": "cancelled", "lost": "lost"}.get(row.cause or "", "failed")


def _likeness(row: JobRow) -> tuple[object, ...]:
    """What the jobs of one line have in common."""
    array = row.array if row.array is not None else row.gang or None
    if array is None or not (row.state == "waiting" or state(row) in ("done", "cancelled")):
        return (row.id,)
    return (array, row.state, row.cause, row.reason if row.state == "waiting" else "")


def numbers(group: Sequence[JobRow]) -> str:
    """The jobs of one line as people write them: #13, or #13-20."""
    first, last = min(map(_number, group)), max(map(_number, group))
    return f"#{first}" if first == last else f"#{first}-{last}"


def _number(row: JobRow) -> int:
    return row.id


def cells(group: Sequence[JobRow], now: float) -> list[str]:
    """The line of some jobs that are alike, as `lay_out` takes it with `COLUMNS`."""
    row, first, last = group[0], min(group, key=_number), max(group, key=_number)
    names = [numbers(group), plain(array_name(first.name, last.name)), state(row)]
    if row.state == "waiting" or (row.state == "paused" and row.ceiling is None):
        return [*names, plain(row.reason)]
    if len(group) > 1:
        if row.gang:
            return [*names, f"{len(group)} tasks of cluster #{row.gang[0]}"]
        return [*names, f"{len(group)} jobs of array #{row.array}"]
    return [
        *names,
        ", ".join(card.device for card in row.cards) or row.device or "",
        *map(_amount, (row.ceiling, row.now if row.state != "finished" else None, row.peak)),
        _elapsed(row, now),
        _exit(row),
        _note(row),
    ]


def _place_in_cluster(row: JobRow) -> str:
    if not row.gang:
        return ""
    port = f", port {row.port}" if row.port is not None else ""
    return f"#{row.gang[0]}, {row.role} {row.role_index} of {len(row.gang)} tasks{port}"


def _elapsed(row: JobRow, now: float) -> str:
    if row.ran is not None:
        return format_seconds(row.ran)
    if row.since is None or row.ceiling is None:
        return ""
    return format_seconds(now - row.since)


def _exit(row: JobRow) -> str:
    if row.code is None or row.cause in ("cancelled", "dependency"):
        return ""
    if row.cause == "signalled":
        try:
            return signal.Signals(row.code - 128).name
        except ValueError:
            return str(row.code)
    return _SHORT_CAUSES.get(row.cause or "", str(row.code))


def _failed(row: JobRow) -> bool:
    return state(row) in ("failed", "lost")


def _note(row: JobRow) -> str:
    if _failed(row) and row.cause != "exited":
        return plain(row.reason)
    parts = []
    if row.state in ("running", "stopping") and row.reason:
        parts.append(row.reason)
    if row.ends_in is not None:
        parts.append(f"about {format_seconds(row.ends_in)} left")
    if row.floor is not None and (row.highest or 0) > row.floor:
        parts.append(f"grew from {format_bytes(row.floor)}")
    if row.within is not None:
        parts.append(f"in #{row.within}")
    if row.gang and row.state != "finished":
        parts.append(f"cluster #{row.gang[0]}")
    return plain(", ".join(parts))


def _amount(value: int | None, missing: str = "-") -> str:
    return missing if value is None else format_bytes(value)
