"""A snapshot as tables of at most 80 columns."""

from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sublet.units import format_bytes, format_seconds
from sublet.wire.messages import Snapshot
from sublet.wire.rows import DeviceRow

_BAR = 24


def draw(snapshot: Snapshot, now: float, stream: TextIO) -> None:
    """Draw what the broker knows."""
    console = Console(file=stream, highlight=False, width=min(_columns(stream), 80))
    console.print(_devices(snapshot))
    if snapshot.leases:
        console.print(_leases(snapshot, now))
    for row in snapshot.leases:
        if row.over:
            console.print(f"#{row.job} {row.name} uses more than it is charged for", style="red")
    for waiting in snapshot.waiting:
        since = format_seconds(max(0.0, now - waiting.since))
        console.print(Text(f"#{waiting.job} {waiting.name} waits {since}: {waiting.reason}"))
    if not snapshot.leases and not snapshot.waiting:
        console.print("nothing runs; try: sublet run train.py", style="dim")
    for nursery in snapshot.nurseries:
        version = f", TensorFlow {nursery.tensorflow}" if nursery.tensorflow else ""
        text = f"nursery {nursery.state}{version}: {nursery.python}"
        console.print(Text(text, style="dim" if nursery.state == "warm" else "yellow"))
    up = format_seconds(snapshot.up)
    console.print(f"broker {snapshot.pid}, up {up}; {snapshot.driver}", style="dim")


def _devices(snapshot: Snapshot) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    # The ignored complaint below: the literals of a tuple are plain text to the checker.
    for name, justify in (
        ("device", "left"),
        ("", "left"),
        ("leased", "right"),
        ("others", "right"),
        ("nursery", "right"),
        ("free", "right"),
        ("of", "right"),
    ):
        # The words in the table above are those that rich takes; to the checker they are text.
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in snapshot.devices:
        amounts = (row.leased, row.strangers, row.standing, row.free, row.device.capacity)
        table.add_row(row.device.id, _bar(row), *map(format_bytes, amounts))
    return table


def _bar(row: DeviceRow) -> Text:
    """Leases, then strangers and nurseries, then room."""
    whole = max(1, row.device.capacity)
    leased = min(_BAR, -(-row.leased * _BAR // whole))
    other = min(_BAR - leased, -(-(row.strangers + row.standing) * _BAR // whole))
    bar = Text()
    bar.append("█" * leased, style="green")
    bar.append("▒" * other, style="yellow")
    bar.append("·" * (_BAR - leased - other), style="dim")
    return bar


def _leases(snapshot: Snapshot, now: float) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    # The ignored complaint below: the literals of a tuple are plain text to the checker.
    for name, justify in (
        ("job", "right"),
        ("program", "left"),
        ("on", "left"),
        ("lease", "right"),
        ("charge", "right"),
        ("now", "right"),
        ("peak", "right"),
        ("for", "right"),
        ("pid", "right"),
    ):
        # The words in the table above are those that rich takes; to the checker they are text.
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    for row in snapshot.leases:
        table.add_row(
            f"#{row.job}",
            row.name[:20],
            row.device if row.within is None else f"#{row.within}",
            format_bytes(row.ceiling),
            format_bytes(row.charge),
            "-" if row.now is None else format_bytes(row.now),
            "-" if row.peak is None else format_bytes(row.peak),
            format_seconds(max(0.0, now - row.since)) if row.state == "running" else row.state,
            str(row.pid or "-"),
        )
    return table


def _columns(stream: TextIO) -> int:
    import shutil

    return shutil.get_terminal_size().columns if stream.isatty() else 80
