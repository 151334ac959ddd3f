"""Reading traces, and what is said of those that make no sense."""

import random
from pathlib import Path

import pytest

from sublet.domain.memory import Exactly, Share
from sublet.errors import BadRequest
from sublet.tools.replay import trace
from sublet.units import GiB

EXCERPT = Path(__file__).parent / "data" / "philly_excerpt.csv"
PLAIN = "submit,duration,memory,gpus,priority\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def test_philly_rows_come_sorted_and_jobs_for_several_gpus_are_told_apart() -> None:
    rows = trace.read(EXCERPT)
    assert len(rows) == 311
    assert [row.submit for row in rows] == sorted(row.submit for row in rows)
    assert {name: len(jobs) for name, jobs in trace.clusters(rows).items()} == {
        "103959": 206,
        "2869ce": 16,
    }


def test_the_usual_cluster_is_the_largest_that_is_not_hopeless() -> None:
    rows = trace.read(EXCERPT)
    assert trace.usual_cluster(rows, 1) == "103959"
    busy = [trace.Row(float(n), 100.0, 1, "busy") for n in range(9)]
    calm = [trace.Row(float(n * 100), 100.0, 1, "calm") for n in range(5)]
    assert trace.usual_cluster([*busy, *calm], 1) == "calm"
    assert trace.usual_cluster([*busy, *calm], 60) == "busy"
    assert trace.usual_cluster(busy, 1) == "busy"
    with pytest.raises(BadRequest, match="no job for one GPU"):
        trace.usual_cluster([trace.Row(0.0, 1.0, 8)], 1)


def test_the_plain_format_takes_amounts_shares_and_classes(tmp_path: Path) -> None:
    rows = trace.read(write(tmp_path, PLAIN + "5,60,4GiB,1,high\n0,10,50%,2,\n"))
    assert rows[0] == trace.Row(0.0, 10.0, 2, "", Share(0.5))
    one, other = trace.jobs(rows, 16 * GiB, 1.0, 1)
    assert (one.share, other.share, other.priority, other.submit) == (0.5, 0.25, "high", 5.0)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("0,10,4GiB,1,high,9", "as many cells"),
        ("0,10", "as many cells"),
        ("soon,10,4GiB,1,", "submit 'soon' is not a number"),
        ("nan,10,4GiB,1,", "submit 'nan' is not a number of seconds"),
        ("0,-1,4GiB,1,", "duration '-1' is not more than 0"),
        ("0,10,4,1,", "has no unit"),
        ("0,10,auto,1,", "'auto' is neither an amount nor a share"),
        ("0,10,4GiB,0,", "'0' GPUs are too few"),
        ("0,10,4GiB,two,", "'two' is not a number of GPUs"),
        ("0,10,4GiB,1,urgent", "priority 'urgent' is none of high, normal, low"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, row: str, said: str) -> None:
    path = write(tmp_path, f"{PLAIN}0,10,4GiB,1,low\n{row}\n")
    with pytest.raises(BadRequest) as refusal:
        trace.read(path)
    assert f"{path}, line 3: " in refusal.value.message
    assert said in refusal.value.message


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", PLAIN, "\x00\xff"])
def test_what_is_no_trace_is_refused_with_the_columns_that_are_wanted(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(BadRequest, match="submit,duration,memory"):
        trace.read(write(tmp_path, text))
    with pytest.raises(BadRequest, match="cannot be read"):
        trace.read(tmp_path / "missing.csv")


def test_a_job_that_no_device_could_hold_is_refused() -> None:
    rows = [trace.Row(0.0, 1.0, 1, memory=Share(1.0))]
    assert trace.jobs(rows, GiB, 1.0, 1)[0].share == 1.0
    big = trace.Row(0.0, 1.0, 1, memory=Exactly(2 * GiB))
    with pytest.raises(BadRequest, match="--capacity"):
        trace.jobs([big], GiB, 1.0, 1)


def test_drawn_shares_have_the_quantiles_that_are_stated() -> None:
    draw = random.Random(1)
    shares = sorted(trace.draw_share(draw) for _ in range(20_000))
    for quantile, share in trace.QUANTILES[1:-1]:
        assert shares[int(quantile * len(shares))] == pytest.approx(share, abs=0.01)
    assert 0.05 <= shares[0] <= shares[-1] <= 1.0


def test_a_longer_excerpt_begins_with_the_same_jobs_and_compressing_moves_only_submissions() -> (
    None
):
    rows = trace.read(EXCERPT)
    whole, few = trace.jobs(rows, GiB, 1.0, 7), trace.jobs(rows[:50], GiB, 2.0, 7)
    for one, other in zip(whole, few, strict=False):
        assert (one.share, one.busy, one.duration) == (other.share, other.busy, other.duration)
        assert other.submit == one.submit / 2
    assert trace.jobs(rows, GiB, 1.0, 8) != whole
