"""The live table, the closing table, the totals and the picture, in 80 columns.

Draws figures that others measured. Where stdout is not a terminal there is one plain line for
each program that ends.
"""

import contextlib
import shutil
import sys
from collections.abc import Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from demo import sketch
from demo.by_hand import why
from demo.catalogue import PROGRAMS
from demo.devices import Device
from demo.leased import Report, charged
from demo.race import Finish, Moment, Race
from sublet.units import MiB, format_bytes, format_seconds
from sublet.wire.messages import Snapshot

_BAR = 40
_LONGEST_RESULT = 24


class Screen:
    """One per demo; `phase` is open while something runs."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.capacity = device.capacity
        self.terminal = sys.stdout.isatty()
        self.console = Console(width=min(80, shutil.get_terminal_size().columns), highlight=False)
        self._live: Live | None = None
        self._told: set[str] = set()

    def say(self, text: str, style: str = "") -> None:
        """Print one paragraph."""
        self.console.print(Text(text, style=style))

    @contextlib.contextmanager
    def phase(self, title: str) -> Iterator[None]:
        """Show what `look` is given until the dedent; the live table is gone afterwards."""
        self.console.print()
        self.say(title, "bold")
        self._told.clear()
        if not self.terminal:
            yield
            return
        with Live(console=self.console, transient=True, refresh_per_second=4) as self._live:
            yield
        self._live = None

    def look(self, moment: Moment, snapshot: Snapshot | None = None) -> None:
        """Bring the picture up to date."""
        if self._live is not None:
            self._live.update(Group(_live_table(moment, snapshot), self._bar(moment, snapshot)))
            return
        for name, finish in moment.finished.items():
            if name not in self._told:
                self._told.add(name)
                held = f"{format_bytes(moment.memory)} together"
                print(f"{moment.seconds:6.1f} s  {name:<16}  {_fate(finish):<26}  {held}")
        sys.stdout.flush()

    def closing(self, race: Race, reports: dict[str, Report]) -> None:
        """What each program was given, needed and did."""
        table = Table(box=None, padding=(0, 1, 0, 0), show_edge=False)
        table.add_column("program", no_wrap=True)
        for name in ("lease", "peak", "wait", "run", "start-up"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("result", no_wrap=True, overflow="ellipsis", max_width=_LONGEST_RESULT)
        for finish in race.finishes:
            report = reports[finish.name]
            table.add_row(
                finish.name,
                _mib(report.lease),
                _mib(report.peak),
                format_seconds(report.waited),
                format_seconds(report.ran),
                "-" if report.startup is None else format_seconds(report.startup),
                Text(_fate(finish), style="" if finish.code == 0 else "red"),
            )
        self.console.print()
        self.console.print(table)
        asked = {program.name: program.asked(self.device.id) for program in PROGRAMS}
        for name, report in reports.items():
            if report.attempts > 1 and report.lease is not None:
                self.say(
                    f"{name} ran out of the {asked[name]} it was given and was started again "
                    f"with {format_bytes(report.lease)}.",
                    "dim",
                )

    def died(self, race: Race) -> None:
        """Who died by hand, and what of."""
        for finish in race.deaths:
            self.say(
                f"  {finish.name}: {why(finish)} after {format_seconds(finish.seconds)}", "red"
            )
        if race.at_once < len(race.finishes):
            self.say(
                f"  Only {race.at_once} at a time: this machine has no memory for all at once.",
                "yellow",
            )

    def totals(self, ways: dict[str, Race]) -> None:
        """A table of both ways, side by side."""
        table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
        table.add_column("way", no_wrap=True)
        for name in ("died", "most memory", f"of {format_bytes(self.capacity)}", "wall time"):
            table.add_column(name, justify="right", no_wrap=True)
        for name, race in ways.items():
            past = race.most > self.capacity
            table.add_row(
                name,
                Text(
                    f"{len(race.deaths)} of {len(race.finishes)}",
                    style="red" if race.deaths else "green",
                ),
                format_bytes(race.most),
                Text(f"{race.most / self.capacity:.0%}", style="red" if past else "green"),
                format_seconds(race.seconds),
            )
        self.console.print()
        self.console.print(table)

    def picture(self, ways: dict[str, Race]) -> None:
        """Memory over time, a panel for each way."""
        self.console.print()
        for line in sketch.draw(ways, self.capacity, self.console.width):
            self.console.print(line, no_wrap=True, overflow="crop")

    def _bar(self, moment: Moment, snapshot: Snapshot | None) -> Text:
        share = moment.memory / self.capacity
        full = min(_BAR, round(share * _BAR))
        text = Text("█" * full, style="red" if share > 1 else "green")
        text.append("·" * (_BAR - full), style="dim")
        text.append(f" {format_bytes(moment.memory)} of {format_bytes(self.capacity)}", style="")
        if snapshot is not None:
            text.append(f", {format_bytes(charged(snapshot, self.device.id))} charged", style="dim")
        return text


def _live_table(moment: Moment, snapshot: Snapshot | None) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column(f"{moment.seconds:.0f} s", no_wrap=True, min_width=16)
    for name in ("lease", "now") if snapshot is not None else ("", ""):
        table.add_column(name, justify="right", no_wrap=True, min_width=8)
    table.add_column("", no_wrap=True, overflow="ellipsis", min_width=26)
    leases = {row.name: row for row in snapshot.leases} if snapshot is not None else {}
    waiting = {row.name for row in snapshot.waiting} if snapshot is not None else set()
    for program in PROGRAMS:
        finish = moment.finished.get(program.name)
        lease = leases.get(program.name)
        if finish is not None:
            fate = Text(_fate(finish), style="green" if finish.code == 0 else "red")
        elif program.name in waiting:
            fate = Text("waits", style="yellow")
        else:
            fate = Text("runs" if program.name in moment.started else "")
        table.add_row(
            program.name,
            format_bytes(lease.ceiling) if lease else "",
            format_bytes(lease.now) if lease and lease.now is not None else "",
            fate,
        )
    return table


def _mib(amount: int | None) -> str:
    """Whole MiB, so that a column of them can be compared at a glance."""
    return "-" if amount is None else f"{max(1, round(amount / MiB))} MiB"


def _fate(finish: Finish) -> str:
    if finish.code != 0:
        return f"died: {why(finish)}"
    return finish.result[:_LONGEST_RESULT]
