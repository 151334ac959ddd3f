"""Draws memory over time in characters: a column for each span, stacked from what is used up."""

from collections.abc import Sequence

from rich.text import Text

from sublet.top.memory_history import Sample
from sublet.units import format_bytes
from sublet.views.table import cut

COLORS = {"used": "green", "leased": "blue", "nursery": "magenta", "others": "yellow"}
SIGNS = {"used": "█", "leased": "▓", "nursery": "▒", "others": "░"}
"""Each part has a sign of its own; a smooth plot has colours instead."""
FREE = "·"
_EIGHTHS = " ▁▂▃▄▅▆▇█"
AXIS = 9
"""Columns that the axis and its labels take."""


def parts(sample: Sample) -> dict[str, int]:
    """The parts of a device's memory that are not free, from the bottom up."""
    return {
        "used": sample.used,
        "leased": sample.leased - sample.used,
        "nursery": sample.nursery,
        "others": sample.others,
    }


def bar(sample: Sample, capacity: int, width: int) -> Text:
    """One device's memory in one line. What is not empty has at least one character."""
    drawn, left = Text(), width
    for name, amount in parts(sample).items():
        cells = min(left, -(-amount * width // max(1, capacity)))
        drawn.append(SIGNS[name] * cells, COLORS[name])
        left -= cells
    return drawn.append(FREE * left, "dim")


def _legend(sample: Sample | None, room: int, smooth: bool) -> Text:
    """What the signs mean; those that are not to be seen are left out if there is little room."""
    names = list(COLORS)
    if room < 40 and sample is not None:
        names = [name for name in names if parts(sample)[name]]
    line = Text()
    for name in names:
        sign = _EIGHTHS[8] if smooth else SIGNS[name]
        line.append("  ").append(sign, COLORS[name]).append(f" {name}")
    return line


def plot(
    title: str,
    columns: Sequence[Sample | None],
    capacity: int,
    height: int,
    span: str,
    smooth: bool = True,
) -> Text:
    """A plot in so many lines, as wide as there are columns and an axis beside them.

    A smooth one has steps of an eighth of a line, which colours alone tell apart.
    """
    width = len(columns) + AXIS
    last = next((one for one in reversed(columns) if one is not None), None)
    head = Text(cut(title, width), "bold")
    key = _legend(last, width - len(head), smooth)
    if len(head) + len(key) <= width:
        head.append_text(key)
    lines = [head]
    rows = max(1, height - 2)
    stacks = [None if one is None else _levels(one, capacity, rows * 8) for one in columns]
    for row in range(rows - 1, -1, -1):
        mark = format_bytes(capacity) if row == rows - 1 else "0" if row == 0 else ""
        line = Text(f"{mark:>{AXIS - 1}}│")
        for stack in stacks:
            line.append(*(_cell if smooth else _whole_cell)(stack, row * 8))
        lines.append(line)
    lines.append(Text(f"{'':{AXIS}}{span:<{max(0, len(columns) - 3)}}now"[:width], "dim"))
    return Text("\n").join(lines)


def _levels(sample: Sample, capacity: int, eighths: int) -> list[tuple[str, int]]:
    """How high each part reaches; one that is not empty is at least an eighth of a row high."""
    levels, sum_of, reached = [], 0, 0
    for name, amount in parts(sample).items():
        if amount:
            sum_of += amount
            reached = min(eighths, max(reached + 1, round(sum_of * eighths / max(1, capacity))))
            levels.append((name, reached))
    return levels


_Stack = list[tuple[str, int]] | None


def _whole_cell(stack: _Stack, bottom: int) -> tuple[str, str]:
    """The sign of the part that is at half of the cell's height."""
    name = next((name for name, level in stack or () if level >= bottom + 4), None)
    return (" ", "") if name is None else (SIGNS[name], COLORS[name])


def _cell(stack: _Stack, bottom: int) -> tuple[str, str]:
    """The character and style of a cell whose lower edge is there, in eighths of a row."""
    if stack is None:
        return " ", ""
    for place, (name, level) in enumerate(stack):
        if level <= bottom:
            continue
        if level >= bottom + 8:
            return _EIGHTHS[8], COLORS[name]
        if place + 1 < len(stack) and stack[place + 1][1] >= bottom + 8:
            return _EIGHTHS[level - bottom], f"{COLORS[name]} on {COLORS[stack[place + 1][0]]}"
        return _EIGHTHS[max(1, min(8, stack[-1][1] - bottom))], COLORS[stack[-1][0]]
    return " ", ""
