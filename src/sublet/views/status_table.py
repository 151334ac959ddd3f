"""A snapshot as tables: devices, leases, waiting jobs, nurseries."""

import textwrap
from collections.abc import Iterator
from html import escape
from itertools import groupby
from typing import Literal

from sublet.text import plain
from sublet.units import format_bytes, format_seconds
from sublet.views.table import Column, array_name, lay_out, to_html
from sublet.wire.messages import Snapshot
from sublet.wire.rows import DeviceRow, WaitingRow

LEASED, OTHERS, FREE = "█▒·"
"""What the bar of a device is made of."""
_BAR = 24
_WAITING = 10
"""The most waiting jobs that are shown."""
_DEVICE_COLUMNS = (
    Column("device"),
    Column("", rank=1),
    *(Column(name, right=True) for name in ("leased", "others", "nursery", "free", "of")),
)
_LEASE_COLUMNS = (
    Column("job", right=True),
    Column("program", least=8),
    Column("on"),
    Column("floor", right=True, rank=3),
    Column("lease", right=True),
    Column("most", right=True, rank=4),
    Column("charge", right=True, rank=2),
    Column("now", right=True),
    Column("peak", right=True),
    Column("elapsed", right=True),
    Column("pid", right=True, rank=1),
)


Tone = Literal["", "dim", "warning", "error"]


def draw(snapshot: Snapshot, now: float, width: int) -> list[tuple[str, Tone]]:
    """Devices, leases, waiting jobs and nurseries, in lines of this width."""
    tables = lay_out(_DEVICE_COLUMNS, [_device(row) for row in snapshot.devices], width)
    if snapshot.leases:
        tables += lay_out(_LEASE_COLUMNS, _leases(snapshot, now), width)
    lines: list[tuple[str, Tone]] = [(line, "") for line in tables]
    for text, tone in _notes(snapshot, now):
        lines += [(line, tone) for line in textwrap.wrap(text, width, subsequent_indent="    ")]
    return lines


def draw_html(snapshot: Snapshot, now: float) -> str:
    """The tables of `draw`, as HTML for a notebook."""
    parts = [to_html(_DEVICE_COLUMNS, [_device(row) for row in snapshot.devices])]
    if snapshot.leases:
        parts.append(to_html(_LEASE_COLUMNS, _leases(snapshot, now)))
    parts += [f"<div>{escape(text)}</div>" for text, _ in _notes(snapshot, now)]
    return "".join(parts)


def _notes(snapshot: Snapshot, now: float) -> Iterator[tuple[str, Tone]]:
    """The lines below the tables."""
    for device in snapshot.devices:
        if device.fault:
            yield plain(f"{device.device.id} cannot be used: {device.fault}"), "error"
        elif device.note:
            yield plain(f"{device.device.id}: {device.note}"), "warning"
    for row in snapshot.leases:
        if row.over:
            yield f"#{row.job} {plain(row.name)} uses more than it is charged for", "error"
    for why in dict.fromkeys(row.unfenced for row in snapshot.leases if row.unfenced):
        jobs = ", ".join(f"#{row.job}" for row in snapshot.leases if row.unfenced == why)
        yield plain(f"of {jobs} TensorFlow's pool alone is held to the lease: {why}"), "dim"
    groups = [list(group) for _, group in groupby(snapshot.waiting, _likeness)][:_WAITING]
    for group in groups:
        first, last = group[0], group[-1]
        numbers = f"#{first.job}" if first is last else f"#{first.job}-{last.job}"
        since = format_seconds(now - first.since)
        name = array_name(first.name, last.name)
        yield plain(f"{numbers} {name} has waited {since}: {first.reason}"), ""
    if (more := snapshot.waits - sum(map(len, groups))) > 0:
        yield f"{more} more are waiting: sublet ps --all", ""
    if not snapshot.leases and not snapshot.waiting:
        yield "nothing is running; try: sublet run train.py", "dim"
    for nursery in snapshot.nurseries:
        version = f", TensorFlow {nursery.tensorflow}" if nursery.tensorflow else ""
        text = plain(f"nursery {nursery.state}{version}: {nursery.python}")
        yield text, "dim" if nursery.state == "warm" else "warning"
    up = format_seconds(snapshot.up)
    yield plain(f"broker {snapshot.pid}, up {up}; {snapshot.driver}"), "dim"


def _likeness(row: WaitingRow) -> tuple[str, ...]:
    """What the jobs of one line have in common; those of an array differ in their index."""
    return (row.name.partition("[")[0], row.reason)


def _device(row: DeviceRow) -> list[str]:
    amounts = (row.leased, row.strangers, row.standing, row.free, row.device.capacity)
    return [row.device.id, _bar(row), *map(format_bytes, amounts)]


def _bar(row: DeviceRow) -> str:
    """A bar of leases, then of strangers and nurseries, then of free memory."""
    whole = max(1, row.device.capacity)
    leased = min(_BAR, -(-row.leased * _BAR // whole))
    other = min(_BAR - leased, -(-(row.strangers + row.standing) * _BAR // whole))
    return LEASED * leased + OTHERS * other + FREE * (_BAR - leased - other)


def _leases(snapshot: Snapshot, now: float) -> list[list[str]]:
    """A line for each lease; of a job on several cards, one for each card."""
    lines = []
    for row in snapshot.leases:
        first = row.cards[0] if row.cards else row
        grows = row.most > row.floor
        lines.append(
            [
                f"#{row.job}",
                plain(row.name),
                row.device if row.within is None else f"#{row.within}",
                format_bytes(row.floor) if grows else "",
                format_bytes(row.ceiling),
                format_bytes(row.most) if grows else "",
                *map(_amount, (row.charge, first.now, first.peak)),
                format_seconds(now - row.since) if row.state == "running" else row.state,
                str(row.pid or "-"),
            ]
        )
        lines += [
            [
                "",
                "",
                card.device,
                "",
                *(format_bytes(card.ceiling), ""),
                *map(_amount, (card.charge, card.now, card.peak)),
                "",
                "",
            ]
            for card in row.cards[1:]
        ]
    return lines


def _amount(value: int | None) -> str:
    return "-" if value is None else format_bytes(value)
