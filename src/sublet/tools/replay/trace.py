"""Reading job traces: Philly's, and a plain one of our own.

    timestamp,duration,num_gpus,gpu_time,cluster      Philly (Jeon et al., ATC'19)
    submit,duration,memory[,gpus][,priority]          ours

In ours, `submit` and `duration` are seconds, `memory` an amount ("6GiB") or a share of the device
("40%"), and `priority` high, normal or low. Rows may come in any order. A row that makes no sense
is an error with its line; nothing is skipped in silence.
"""

import csv
import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from sublet.domain.memory import Exactly, Share, parse_memory
from sublet.errors import BadRequest
from sublet.policy.wait_queue import Priority

PHILLY = ("timestamp", "duration", "num_gpus", "cluster")
PLAIN = ("submit", "duration", "memory")
QUANTILES = ((0.0, 0.05), (0.1, 0.23), (0.5, 0.47), (0.9, 0.81), (1.0, 1.0))
"""Shares of a device that real fractional requests asked for; straight lines between."""
_FORMATS = f"Its columns: {','.join(PLAIN)}[,gpus,priority],\nor: {','.join(PHILLY)}."


class TraceJob(Struct, frozen=True):
    """One job of a trace."""

    number: int
    """Its place by submission, from 0."""
    submit: float
    """Seconds after the first."""
    duration: float
    """Seconds it runs alone."""
    share: float
    """Of one device's memory."""
    busy: float
    """The share of the time for which it keeps the device busy when alone."""
    priority: Priority = "normal"


class Row(Struct, frozen=True):
    """A row as it was read."""

    submit: float
    duration: float
    gpus: int
    cluster: str = ""
    memory: Exactly | Share | None = None
    priority: Priority = "normal"


def read(path: Path) -> list[Row]:
    """All rows, sorted by submission."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(_rows(file, str(path)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BadRequest(f"{path} cannot be read: {why}.", _FORMATS) from None
    if not rows:
        raise BadRequest(f"{path} has no jobs.", _FORMATS)
    return sorted(rows, key=lambda row: row.submit)


def _rows(file: Iterable[str], path: str) -> Iterator[Row]:
    table = csv.DictReader(file)
    columns = set(table.fieldnames or ())
    if columns.issuperset(PHILLY):
        parse = _philly
    elif columns.issuperset(PLAIN):
        parse = _plain
    else:
        raise BadRequest(f"{path} is no job trace that is known here.", _FORMATS)
    for cells in table:
        try:
            if None in cells or None in cells.values():
                raise ValueError("it has not as many cells as there are columns")
            yield parse(cells)
        except (ValueError, OverflowError, BadRequest) as error:
            why = error.message if isinstance(error, BadRequest) else str(error)
            raise BadRequest(
                f"{path}, line {table.line_num}: {why}.".replace("..", "."),
                "Mend or remove that line.",
            ) from None


def _philly(cells: dict[str, str]) -> Row:
    moment = datetime.fromisoformat(cells["timestamp"]).replace(tzinfo=UTC)
    return Row(
        submit=moment.timestamp(),
        duration=_positive("duration", cells["duration"]),
        gpus=_count(cells["num_gpus"]),
        cluster=cells["cluster"],
    )


def _plain(cells: dict[str, str]) -> Row:
    memory = parse_memory(cells["memory"])
    if not isinstance(memory, Exactly | Share):
        raise ValueError(f"memory {cells['memory']!r} is neither an amount nor a share")
    return Row(
        submit=_number("submit", cells["submit"]),
        duration=_positive("duration", cells["duration"]),
        gpus=_count(cells.get("gpus") or "1"),
        memory=memory,
        priority=_priority((cells.get("priority") or "normal").strip()),
    )


def _priority(text: str) -> Priority:
    match text:
        case "high" | "normal" | "low":
            return text
    raise ValueError(f"priority {text!r} is none of high, normal, low")


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{name} {text!r} is not a number") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} {text!r} is not a number of seconds")
    return number


def _positive(name: str, text: str) -> float:
    number = _number(name, text)
    if number <= 0:
        raise ValueError(f"{name} {text!r} is not more than 0")
    return number


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number of GPUs") from None
    if number < 1:
        raise ValueError(f"{text!r} GPUs are too few")
    return number


def clusters(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The jobs for one GPU of each virtual cluster, the largest cluster first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.gpus == 1:
            found.setdefault(row.cluster, []).append(row)
    return dict(sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0])))


def load(rows: list[Row]) -> float:
    """How many devices these jobs would keep occupied one at a time, from first to last."""
    span = rows[-1].submit - rows[0].submit
    work = sum(row.duration for row in rows)
    return work / span if span else math.inf


def usual_cluster(rows: Iterable[Row], devices: int) -> str:
    """The largest one that asks for at most twice what the devices could do one at a time."""
    found = clusters(rows)
    if not found:
        raise BadRequest("The trace has no job for one GPU.", "Jobs for several are not replayed.")
    for name, jobs in found.items():
        if load(jobs) <= 2 * devices:
            return name
    return min(found, key=lambda name: load(found[name]))


def jobs(rows: list[Row], capacity: int, compress: float, seed: int) -> list[TraceJob]:
    """The jobs to replay: gaps between submissions divided by `compress`, what is missing drawn.

    Each job's draws depend on the seed and its place alone, so that a longer excerpt begins with
    the same jobs.
    """
    first = rows[0].submit
    made = []
    for number, row in enumerate(rows):
        draw = random.Random(f"{seed}/{number}")
        drawn, busy = draw_share(draw), draw.betavariate(2, 2)
        match row.memory:
            case None:
                share = drawn
            case Share(share=asked):
                share = asked
            case Exactly(bytes=amount):
                share = amount / capacity
        if share > 1:
            raise BadRequest(
                f"Job {number} asks for {row.memory} and a device has less.",
                "Say --capacity, as large as the devices of the trace.",
            )
        submit = (row.submit - first) / compress
        made.append(TraceJob(number, submit, row.duration, share, busy, row.priority))
    return made


def draw_share(draw: random.Random) -> float:
    """A share of a device, by `QUANTILES`."""
    at = draw.random()
    upper = bisect_right([quantile for quantile, _ in QUANTILES], at)
    (low, least), (high, most) = QUANTILES[upper - 1], QUANTILES[upper]
    return least + (most - least) * (at - low) / (high - low)
