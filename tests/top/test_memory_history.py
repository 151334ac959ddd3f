"""Memory over time: what a plot is made of."""

from sublet.client.snapshot_feed import View
from sublet.top.memory_history import LONGEST, MemoryHistory, Sample, used_by_device
from sublet.units import GiB, MiB
from sublet.wire.rows import CardRow, DeviceRow
from support.jobs import device
from support.rows import job_row


def seen(leased: int, used: int = 0) -> View:
    job = job_row(1, "train.py", "running", device="cpu", now=used)
    return View(1, {"cpu": DeviceRow(device(), leased, 0, 0, GiB)}, {1: job})


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


def test_an_hour_is_kept_and_one_sample_a_second() -> None:
    history = MemoryHistory()
    for second in range(3 * LONGEST):
        for part in (0.1, 0.5):
            history.note(second + part, seen(second % 7))
    assert len(history._devices["cpu"]) <= LONGEST + 2
    assert not history.moves(3 * LONGEST + 10.0)
    assert history.moves(3 * LONGEST - 10.0)


def test_what_is_used_is_counted_where_it_is_and_never_more_than_is_leased() -> None:
    cards = tuple(CardRow(f"gpu{n}", GiB, GiB, n * MiB, None) for n in (0, 1))
    rows = [
        job_row(1, "a", "running", device="gpu0", now=5 * MiB),
        job_row(2, "b", "running", device="gpu0", now=MiB, cards=cards),
        job_row(3, "c", "finished", device="gpu0", now=GiB),
    ]
    assert used_by_device(rows) == {"gpu0": 5 * MiB, "gpu1": MiB}
    history = MemoryHistory()
    history.note(1.0, seen(10, used=99))
    assert history.columns("cpu", 2.0, 1.0, 1) == [Sample(10, 10, 0, 0)]
