"""What `sublet status` draws."""

import io
import os
from typing import Any

import pytest

from sublet.cli.tables import draw
from sublet.domain.device import Device
from sublet.units import GiB
from sublet.wire.messages import Snapshot
from sublet.wire.rows import DeviceRow, LeaseRow, WaitingRow


class Screen(io.StringIO):
    """A terminal of so many columns."""

    def isatty(self) -> bool:
        return True


def picture(columns: int, monkeypatch: pytest.MonkeyPatch, waits: int = 0, **row: Any) -> list[str]:
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((columns, 24)))
    for name, value in {"NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("COLUMNS", raising=False)
    cpu = Device("cpu", "cpu", "a processor", 100 * GiB, None, None, "80% of RAM")
    device = DeviceRow(device=cpu, leased=99 * GiB, strangers=0, standing=0, free=GiB)
    lease = LeaseRow(
        1234, 1, row.get("name", "train.py"), "running", "cpu", 98 * GiB, 99 * GiB, 98 * GiB,
        98 * GiB, 0.0, 123456, "warm", "as asked", over=False, floor=97 * GiB, highest=98 * GiB,
        most=row.get("most", 99 * GiB),
    )  # fmt: skip
    screen = Screen()
    draw(_snapshot(device, lease, waits), 59.0, screen)
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def _snapshot(device: DeviceRow, lease: LeaseRow, waits: int) -> Snapshot:
    first = range(1, min(waits, 100) + 1)
    waiting = tuple(WaitingRow(job, "x.py", "auto", None, 0.0, "no room") for job in first)
    return Snapshot(
        version="1", pid=1, home="/", up=1.0, driver="no driver", devices=(device,),
        leases=(lease,), waiting=waiting, nurseries=(), waits=waits,
    )  # fmt: skip


@pytest.mark.parametrize("columns", [200, 80, 79, 60, 30])
def test_no_amount_is_cut_however_narrow_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns are left out as a whole."""
    lines = picture(columns, monkeypatch)
    assert max(map(len, lines)) <= max(60, min(columns, 104))
    assert "…" not in "".join(lines)
    assert lines[1].split()[-4:] == ["1.0", "GiB", "100", "GiB"]
    shown = ["97.0", "GiB", "98.0", "GiB", "99.0", "GiB"] if columns == 200 else ["98.0", "GiB"]
    assert lines[3].split()[: 3 + len(shown)] == ["#1234", "train.py", "cpu", *shown]


def test_a_lease_that_cannot_grow_has_no_most(monkeypatch: pytest.MonkeyPatch) -> None:
    assert picture(200, monkeypatch, most=98 * GiB)[3].split()[3:8:2] == ["97.0", "98.0", "98.0"]
    assert picture(200, monkeypatch, most=0)[3].split()[3:8] == ["97.0", "GiB", "98.0", "GiB", "-"]


def test_a_name_is_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    assert picture(80, monkeypatch, name="[red]x")[3].split()[1] == "[red]x"


def test_of_many_who_wait_the_first_are_shown_and_the_others_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = picture(80, monkeypatch, waits=10_000)
    assert sum(line.endswith("no room") for line in lines) == 10
    assert "9990 more wait: sublet ps --all" in lines
    assert not any("more wait" in line for line in picture(80, monkeypatch, waits=10))
