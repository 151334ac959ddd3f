"""Memory over time: what a plot is made of."""

from sublet.client.snapshot_feed import View
from sublet.top.memory_history import LONGEST, MemoryHistory, Sample
from sublet.units import GiB
from sublet.wire.messages import UsageHistory
from sublet.wire.rows import DeviceRow, HoldingRow, UsageRow
from support.jobs import device


def seen(leased: int, used: int = 0) -> View:
    return View(1, {"cpu": DeviceRow(device(), leased, 0, 0, GiB, used=used)}, {})


def leased(history: MemoryHistory, until: float, step: float, count: int) -> list[int | None]:
    columns = history.columns("cpu", until, step, count)
    return [None if one is None else one.leased for one in columns]


def test_a_sample_holds_until_the_next_and_a_column_shows_the_fullest() -> None:
    history = MemoryHistory()
    history.note(100.0, seen(1))
    history.note(121.0, seen(5))
    history.note(123.0, seen(2))
    assert leased(history, 150.0, 10.0, 6) == [None, 1, 1, 5, 2, 2]
    assert leased(history, 140.0, 10.0, 1) == [2]
    assert leased(history, 119.0, 1.0, 2) == [1, 1]


def test_what_nobody_knows_is_a_gap() -> None:
    history = MemoryHistory()
    history.note(100.0, seen(1))
    history.lose(110.5)
    history.note(130.0, seen(3))
    assert leased(history, 140.0, 10.0, 4) == [1, 1, None, 3]
    assert history.columns("gpu0", 140.0, 10.0, 2) == [None, None]


def test_what_holds_on_is_the_last_sample_of_a_second_and_no_peak_is_lost() -> None:
    history = MemoryHistory()
    for at, amount in ((100.1, 3), (100.3, 9), (100.5, 1), (100.6, 2)):
        history.note(at, seen(amount))
    assert leased(history, 102.0, 1.0, 2) == [9, 2]


def test_an_hour_is_kept_and_two_samples_a_second() -> None:
    history = MemoryHistory()
    for second in range(3 * LONGEST):
        for part in (0.1, 0.3, 0.5):
            history.note(second + part, seen(int(7 - 10 * part)))
    assert len(history._devices["cpu"]) <= 2 * LONGEST + 2
    assert not history.moves(3 * LONGEST + 10.0)
    assert history.moves(3 * LONGEST - 10.0)


def test_what_is_used_is_never_more_than_what_is_leased() -> None:
    history = MemoryHistory()
    history.note(1.0, seen(10, used=99))
    assert history.columns("cpu", 2.0, 1.0, 1) == [Sample(10, 10, 0, 0)]


def test_it_begins_with_what_the_broker_has_kept() -> None:
    rows = (
        UsageRow(100.0, 7, 2, ()),
        UsageRow(120.0, 7, 2, (HoldingRow(1, 50, 5), HoldingRow(2, 0, 3))),
    )
    history = MemoryHistory()
    history.fill(UsageHistory(90.0, 130.0, {"cpu": rows}, (), {}))
    history.note(140.0, seen(60, used=9))
    columns = history.columns("cpu", 150.0, 10.0, 6)
    before, during, now = Sample(0, 0, 2, 7), Sample(8, 50, 2, 7), Sample(9, 60, 0, 0)
    # The moment at which the view came falls into the last column, and there the fullest counts.
    assert columns == [None, before, before, during, during, now]
