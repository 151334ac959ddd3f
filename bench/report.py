"""What a benchmark found: tables for people, bars that it had to reach, JSON for programs.

Owns the format of both. Never measures.
"""

import dataclasses
import json
import operator
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from bench import figures

WIDTH = 80
RESULTS = Path(__file__).parent / "results"
FORMAT = 1
_LEAST = 8
_ABSOLUTE = re.compile(r"(?<![\w.])/(?:[^\s/:'\"]+/)+")
"""The directories of a path: they would name the machine or its user."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of text under columns; the first column is left-aligned, the others right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def render(self) -> str:
        """The table as text, never wider than 80 columns: the first column gives way."""
        grid = [self.columns, *self.rows]
        for row in grid:
            if len(row) != len(self.columns):
                raise ValueError(f"{len(row)} cells under {len(self.columns)} columns: {row}")
        widths = [max(len(row[i]) for row in grid) for i in range(len(self.columns))]
        room = WIDTH - sum(widths[1:]) - 2 * (len(widths) - 1)
        if room < min(widths[0], _LEAST):
            raise ValueError(f"{self.title}: wider than {WIDTH} columns")
        widths[0] = min(widths[0], room)
        lines = [self.title, ""]
        for row in grid:
            first = row[0] if len(row[0]) <= widths[0] else row[0][: widths[0] - 1] + "…"
            cells = [first.ljust(widths[0])]
            cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            lines.append("  ".join(cells).rstrip())
        lines.insert(3, "─" * (sum(widths) + 2 * (len(widths) - 1)))
        lines += _wrapped(self.notes)
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Bar:
    """A figure and the line that it must reach."""

    name: str
    value: float
    limit: float
    kind: Literal["at least", "at most"]
    unit: str = "x"
    interval: tuple[float, float] | None = None
    """Where the true figure lies; without one, the figure is taken at its word."""

    @property
    def met(self) -> bool | None:
        """Whether the line is reached; None if the interval does not tell."""
        reaches = operator.ge if self.kind == "at least" else operator.le
        ends = {bool(reaches(end, self.limit)) for end in self.interval or (self.value,)}
        return ends.pop() if len(ends) == 1 else None

    def render(self) -> str:
        """One line: met, missed or cannot tell; the figure, the line."""
        unit = self.unit if self.unit == "x" else f" {self.unit}"
        sign = "≥" if self.kind == "at least" else "≤"
        figure = f"{figures.significant(self.value)}{unit}"
        mark = {True: "met   ", False: "MISSED", None: "unsure"}[self.met]
        line = f"  {mark}  {figure:>10}  ({sign} {self.limit:g}{unit})"
        return f"{line:<34}  {self.name}"


@dataclasses.dataclass(frozen=True)
class Result:
    """The tables, bars and samples of one benchmark."""

    name: str
    tables: tuple[Table, ...]
    bars: tuple[Bar, ...]
    samples: Mapping[str, Any]
    failures: tuple[str, ...] = ()
    """What could not be measured, and why; never hidden behind the figures that could."""

    def render(self) -> str:
        parts = [table.render() for table in self.tables]
        if self.bars:
            parts.append("\n".join(["bars", *(bar.render() for bar in self.bars)]))
        if self.failures:
            parts.append("\n".join(["not measured", *_wrapped(self.failures)]))
        return "\n\n".join(parts)

    def document(self, machine: Mapping[str, Any], quick: bool) -> dict[str, Any]:
        """What is written to disk."""
        return {
            "format": FORMAT,
            "bench": self.name,
            "quick": quick,
            "machine": dict(machine),
            "tables": [dataclasses.asdict(table) for table in self.tables],
            "bars": [{**dataclasses.asdict(bar), "met": bar.met} for bar in self.bars],
            "samples": dict(self.samples),
            "failures": [without_directories(failure) for failure in self.failures],
        }


def without_directories(text: str) -> str:
    """Paths by their last part only."""
    return _ABSOLUTE.sub("", text)


def write(document: Mapping[str, Any], directory: Path = RESULTS) -> Path:
    """Leave a result on disk. A quick one never replaces a full one."""
    suffix = "-quick" if document["quick"] else ""
    path = directory / f"{document['bench']}{suffix}.json"
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    return path


def _wrapped(lines: Sequence[str]) -> list[str]:
    return [
        part
        for line in lines
        for part in textwrap.wrap(line, WIDTH - 2, initial_indent="  ", subsequent_indent="  ")
    ]
