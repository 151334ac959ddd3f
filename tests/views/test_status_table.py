"""What `sublet status` draws."""

from typing import Any

import pytest

from sublet.domain.device import Device
from sublet.units import GiB
from sublet.views.status_table import draw
from sublet.wire.messages import Snapshot
from sublet.wire.rows import DeviceRow, LeaseRow, WaitingRow


def picture(columns: int, waits: int = 0, **row: Any) -> list[str]:
    cpu = Device("cpu", "cpu", "a processor", 100 * GiB, None, None, "80% of RAM")
    device = DeviceRow(device=cpu, leased=99 * GiB, strangers=0, standing=0, free=GiB)
    lease = LeaseRow(
        1234, 1, row.get("name", "train.py"), "running", "cpu", 98 * GiB, 99 * GiB, 98 * GiB,
        98 * GiB, 0.0, 123456, "warm", "as asked", over=False, floor=97 * GiB, highest=98 * GiB,
        most=row.get("most", 99 * GiB),
    )  # fmt: skip
    snapshot = _snapshot(device, lease, waits, row.get("waiting", "x{}.py"))
    return [line for line, _ in draw(snapshot, 59.0, columns)]


def _snapshot(device: DeviceRow, lease: LeaseRow, waits: int, name: str) -> Snapshot:
    first = range(1, min(waits, 100) + 1)
    waiting = tuple(
        WaitingRow(job, name.format(job), "auto", None, 0.0, "no room") for job in first
    )
    return Snapshot(
        version="1", pid=1, home="/", up=1.0, driver="no driver", devices=(device,),
        leases=(lease,), waiting=waiting, nurseries=(), waits=waits,
    )  # fmt: skip


@pytest.mark.parametrize("columns", [200, 80, 72, 60])
def test_no_number_is_cut_however_narrow_the_terminal(columns: int) -> None:
    """Columns are left out as a whole."""
    lines = picture(columns)
    assert max(map(len, lines)) <= columns
    assert "…" not in "".join(lines)
    assert lines[1].split()[-4:] == ["1.0", "GiB", "100", "GiB"]
    titles = lines[2].split()
    assert {"job", "program", "on", "lease", "now", "peak", "elapsed"} <= set(titles)
    assert ("most" in titles) == (columns == 200)
    assert ("pid" in titles) == (columns >= 72)
    assert lines[3].split()[:3] == ["#1234", "train.py", "cpu"]


def test_a_lease_that_cannot_grow_has_neither_floor_nor_most() -> None:
    assert picture(200)[3].split()[3:9:2] == ["97.0", "98.0", "99.0"]
    assert "floor" in picture(200)[2]
    assert not {"floor", "most"} & set(picture(200, most=0)[2].split())


def test_a_name_cannot_move_the_cursor() -> None:
    assert picture(80, name="\x1b[2Jx")[3].split()[1] == "\ufffd[2Jx"


def test_of_many_who_wait_the_first_are_shown_and_the_others_counted() -> None:
    lines = picture(80, waits=10_000)
    assert sum(line.endswith("no room") for line in lines) == 10
    assert "9990 more are waiting: sublet ps --all" in lines
    assert not any("more are waiting" in line for line in picture(80, waits=10))


def test_the_elements_of_an_array_that_wait_alike_share_a_line() -> None:
    lines = picture(80, waits=100, waiting="x.py[{}]")
    assert any(line.startswith("#1-100 x.py[1-100] has waited 59.0 s: no room") for line in lines)
    assert not any("more are waiting" in line for line in lines)
