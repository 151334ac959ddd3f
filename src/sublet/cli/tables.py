"""A snapshot as tables that fit the terminal, with less in them the narrower it is."""

from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sublet.text import plain
from sublet.units import format_bytes, format_seconds
from sublet.wire.messages import Snapshot
from sublet.wire.rows import DeviceRow

_BAR = 24
_WIDE = 80
_WIDEST = 104
_MORE = ("charge", "pid")
"""Shown of leases where there are 80 columns."""
_NARROW = 60
"""What the tables need without the bar, the charges and the process numbers."""
_WAITING = 10
"""The most waiting jobs that are shown."""


def draw(snapshot: Snapshot, now: float, stream: TextIO) -> None:
    """Draw devices, leases, waiting jobs and nurseries."""
    width = max(_NARROW, min(_columns(stream), _WIDEST))
    # With a height: of a terminal that can do little, rich takes no width alone.
    console = Console(file=stream, highlight=False, width=width, height=25)
    console.print(_devices(snapshot, wide=width >= _WIDE))
    for line in _faults(snapshot):
        console.print(line)
    if snapshot.leases:
        console.print(_leases(snapshot, now, width))
    for row in snapshot.leases:
        if row.over:
            text = f"#{row.job} {plain(row.name)} uses more than it is charged for"
            console.print(Text(text, style="red"))
    for waiting in snapshot.waiting[:_WAITING]:
        since = format_seconds(max(0.0, now - waiting.since))
        text = f"#{waiting.job} {waiting.name} waits {since}: {waiting.reason}"
        console.print(Text(plain(text)))
    if (more := snapshot.waits - _WAITING) > 0:
        console.print(f"{more} more wait: sublet ps --all")
    if not snapshot.leases and not snapshot.waiting:
        console.print("nothing runs; try: sublet run train.py", style="dim")
    for nursery in snapshot.nurseries:
        version = f", TensorFlow {nursery.tensorflow}" if nursery.tensorflow else ""
        text = f"nursery {nursery.state}{version}: {nursery.python}"
        console.print(Text(plain(text), style="dim" if nursery.state == "warm" else "yellow"))
    up = format_seconds(snapshot.up)
    console.print(Text(plain(f"broker {snapshot.pid}, up {up}; {snapshot.driver}"), style="dim"))


def _devices(snapshot: Snapshot, wide: bool) -> Table:
    table = _table("device", *([""] if wide else []))
    for name in ("leased", "others", "nursery", "free", "of"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in snapshot.devices:
        amounts = (row.leased, row.strangers, row.standing, row.free, row.device.capacity)
        bar = [_bar(row)] if wide else []
        table.add_row(row.device.id, *bar, *map(format_bytes, amounts))
    return table


def _faults(snapshot: Snapshot) -> list[Text]:
    return [
        Text(plain(f"{row.device.id} cannot be used: {row.fault}"), style="red")
        for row in snapshot.devices
        if row.fault
    ]


def _table(*names: str) -> Table:
    """A table without lines, whose first columns have these names."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for name in names:
        table.add_column(name, no_wrap=True)
    return table


def _bar(row: DeviceRow) -> Text:
    """A bar of leases, then of strangers and nurseries, then of free memory."""
    whole = max(1, row.device.capacity)
    leased = min(_BAR, -(-row.leased * _BAR // whole))
    other = min(_BAR - leased, -(-(row.strangers + row.standing) * _BAR // whole))
    bar = Text()
    bar.append("█" * leased, style="green")
    bar.append("▒" * other, style="yellow")
    bar.append("·" * (_BAR - leased - other), style="dim")
    return bar


def _leases(snapshot: Snapshot, now: float, width: int) -> Table:
    wide, widest = width >= _WIDE, width >= _WIDEST
    table = _table()
    table.add_column("job", justify="right", no_wrap=True)
    table.add_column("program", no_wrap=True, overflow="ellipsis")
    table.add_column("on", no_wrap=True)
    for name in ("floor", "lease", "most", "charge", "now", "peak", "for", "pid"):
        if widest or name in ("lease", "now", "peak", "for") or (wide and name in _MORE):
            table.add_column(name, justify="right", no_wrap=True)
    for row in snapshot.leases:
        first = row.cards[0] if row.cards else row
        amounts = [row.ceiling, *([row.charge] if wide else []), first.now, first.peak]
        if widest:
            fixed = row.most <= row.floor
            amounts[:1] = [row.floor, row.ceiling, None if fixed else row.most]
        running = row.state == "running"
        table.add_row(
            f"#{row.job}",
            Text(plain(row.name[:20])),
            row.device if row.within is None else f"#{row.within}",
            *("-" if amount is None else format_bytes(amount) for amount in amounts),
            format_seconds(max(0.0, now - row.since)) if running else row.state,
            *([str(row.pid or "-")] if wide else []),
        )
        for card in row.cards[1:]:
            amounts = [card.ceiling, *([card.charge] if wide else []), card.now, card.peak]
            if widest:
                amounts[:1] = [card.ceiling, card.ceiling, None]
            cells = ("-" if amount is None else format_bytes(amount) for amount in amounts)
            table.add_row("", "", card.device, *cells)
    return table


def _columns(stream: TextIO) -> int:
    import shutil

    return shutil.get_terminal_size().columns if stream.isatty() else _WIDE
