"""The panels above and beside the list: devices, plots of their memory, served models."""

import math
from collections.abc import Sequence
from itertools import islice

from rich.text import Text
from textual.message import Message
from textual.widgets import Static

from sublet.client.snapshot_feed import View
from sublet.serving.metrics import Row
from sublet.text import plain
from sublet.top.memory_history import MemoryHistory, sample
from sublet.top.plot import AXIS, bar, plot
from sublet.units import format_bytes, format_seconds, shorten
from sublet.views.table import Column, cut, lay_out
from sublet.wire.rows import DeviceRow, JobRow

SPANS = {60.0: "1 min", 600.0: "10 min", 3600.0: "1 h"}
"""Seconds that a plot can show, and how they are written."""
_AMOUNTS = ("used", "leased", "others", "nursery", "free", "of")
_COLUMNS = (Column("device"), *(Column(name, right=True) for name in _AMOUNTS))
_MODEL_COLUMNS = (
    Column("model", least=8),
    Column("version", right=True, rank=3),
    Column("state"),
    Column("on", rank=2),
    Column("memory", right=True),
    Column("requests", right=True, rank=1),
    Column("queue", right=True),
)
_GONE = "Programs go on; the next `sublet` command starts a broker."
_BESIDE_MODEL = 48
"""Columns that all but the name of a model takes."""
_LEAST_BAR = 8
_LEAST_PLOT = 34
"""Columns of a plot that stands beside another."""


class Panel(Static):
    """A text that is drawn again only when it has become another one."""

    class Resized(Message):
        """There is more or less room for a text."""

    def on_resize(self) -> None:
        """What was drawn for another size is to be drawn again."""
        self.post_message(self.Resized())

    def __init__(self, id: str) -> None:
        super().__init__("", markup=False, id=id)
        self.shown = Text()

    def show(self, text: Text) -> bool:
        """Show this; whether it is another text than before."""
        if text == self.shown and text.spans == self.shown.spans:
            return False
        self.shown = text
        self.update(text)
        return True


def title(rows: Sequence[JobRow], left_out: int, lost: str, width: int) -> Text:
    """The first line: how many jobs there are, and when the next one starts."""
    if lost:
        return Text(cut(f"{lost} {_GONE}", width), "bold red")
    states = [row.state for row in rows]
    waiting = states.count("waiting") + left_out
    paused, ended = states.count("paused"), states.count("finished")
    counts = [f"{len(states) - states.count('waiting') - paused - ended} running"]
    counts += [f"{waiting} waiting"] if waiting else []
    counts += [f"{paused} paused"] if paused else []
    starts = [row.starts_in for row in rows if row.starts_in]
    if starts:
        counts.append(f"next start in about {format_seconds(min(starts))}")
    return Text(cut(f"sublet top  {', '.join(counts)}", width), "bold")


def devices(view: View, width: int) -> Text:
    """A line for each device, with a bar where there is room for one."""
    rows = list(view.devices.values())
    table = lay_out(_COLUMNS, [_amounts(row) for row in rows], width)
    room = width - max(map(len, table), default=0) - 2
    lines = [Text(table[0], "bold")]
    for row, line in zip(rows, table[1:], strict=True):
        drawn = Text(line)
        if room >= _LEAST_BAR:
            drawn.append("  ").append_text(bar(sample(row), row.device.capacity, room))
        lines.append(drawn)
        if why := row.fault or row.note:
            text = cut(plain(f"{row.device.id}: {why}"), width)
            lines.append(Text(text, "red" if row.fault else "yellow"))
    return Text("\n").join(lines)


def _amounts(row: DeviceRow) -> list[str]:
    amounts = (row.used, row.leased, row.strangers, row.standing, row.free, row.device.capacity)
    return [row.device.id, *map(format_bytes, amounts)]


def plots(
    history: MemoryHistory,
    rows: Sequence[DeviceRow],
    first: int,
    now: float,
    span: float,
    size: tuple[int, int],
    smooth: bool,
) -> Text:
    """Plots of the devices from this one on, as many as fit side by side or one below the other."""
    width, height = size
    if not rows or height < 3 or width < _LEAST_PLOT // 2:
        return Text()
    across = max(1, min(len(rows), width // _LEAST_PLOT)) if height < 12 else 1
    down = max(1, min(len(rows), height // 8)) if across == 1 else 1
    wide, high = (width - 2 * (across - 1)) // across, height // down
    chosen = list(islice([*rows[first:], *rows[:first]], across * down))
    drawn = [_plot(history, row, now, span, (wide, high), smooth) for row in chosen]
    if across == 1:
        return Text("\n").join(drawn)
    lines = [[*one.split("\n", allow_blank=True)] for one in drawn]
    for line in (line for one in lines for line in one):
        line.pad_right(wide - line.cell_len)
    return Text("\n").join(Text("  ").join(side) for side in zip(*lines, strict=True))


def _plot(
    history: MemoryHistory,
    row: DeviceRow,
    now: float,
    span: float,
    size: tuple[int, int],
    smooth: bool,
) -> Text:
    width, height = size
    count = max(1, width - AXIS)
    step = span / count
    # Columns begin at fixed moments, so that the plot moves by whole ones.
    until = math.ceil(now / step) * step
    columns = history.columns(row.device.id, until, step, count)
    ago = f"-{SPANS[span]}"
    return plot(row.device.id, columns, row.device.capacity, height, ago, smooth)


def models(rows: Sequence[Row], width: int) -> Text:
    """A line for each served model; nothing if there are none."""
    if not rows:
        return Text()
    cells = [
        [
            shorten(plain(row.model), max(8, width - _BESIDE_MODEL)),
            str(row.version),
            plain(row.state),
            plain(row.device),
            format_bytes(row.bytes) if row.bytes else "-",
            str(row.requests),
            str(row.waiting),
        ]
        for row in rows
    ]
    head, *lines = lay_out(_MODEL_COLUMNS, cells, width)
    drawn = [Text(head, "bold")]
    drawn += [Text(line, "red" if row.error else "") for row, line in zip(rows, lines, strict=True)]
    return Text("\n").join(drawn)
