"""Any job fits the table."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from sublet.cli.jobtable import draw, line
from sublet.wire.messages import Jobs
from sublet.wire.rows import JobRow

amounts = st.none() | st.integers(0, 2**50)
spans = st.none() | st.floats(0, 1e9)
rows = st.builds(
    JobRow,
    id=st.integers(1, 10**18),
    name=st.text(max_size=40),
    state=st.sampled_from(["waiting", "starting", "running", "stopping", "paused", "finished"]),
    reason=st.text(max_size=200),
    submitted=st.just(1.0),
    attempt=st.integers(1, 9),
    attempt_id=st.just("1.1"),
    priority=st.just("normal"),
    service=st.just("guaranteed"),
    memory=st.just("auto"),
    ends_in=spans,
    ceiling=amounts,
    now=amounts,
    peak=amounts,
    since=spans,
    ran=spans,
    code=st.none() | st.integers(0, 255),
    within=st.none() | st.integers(1, 10**18),
    cause=st.sampled_from(
        [None, "exited", "signalled", "lease exceeded", "time limit", "cancelled", "lost"]
    ),
)


def row(**fields: object) -> JobRow:
    known: dict[str, object] = {
        "id": 13,
        "name": "train.py",
        "state": "waiting",
        "reason": "after #12",
        "submitted": 1.0,
        "attempt": 1,
        "attempt_id": "13.1",
        "priority": "normal",
        "service": "guaranteed",
        "memory": "auto",
    }
    return JobRow(**(known | fields))  # type: ignore[arg-type]


@given(rows, st.floats(0, 1e10))
def test_a_job_takes_80_columns_at_most_and_moves_no_cursor(one: JobRow, now: float) -> None:
    lines = line(one, now).split("\n")
    assert max(map(cell_len, lines)) <= 80
    assert all(text.isprintable() or not text.isascii() for text in lines)
    assert not set("".join(lines)) & set(map(chr, [*range(32), 127, *range(128, 160)]))
    assert f"#{one.id}" in lines[0]


@given(st.lists(rows, max_size=5), st.integers(0, 10**6))
def test_a_table_has_each_job_and_says_what_is_left_out(jobs: list[JobRow], left: int) -> None:
    drawn = draw(Jobs(tuple(jobs), 1, 2, left), 0.0)
    assert max(map(cell_len, drawn.split("\n"))) <= 80
    assert all(f"#{one.id}" in drawn for one in jobs)
    assert (f"{left} not shown" in drawn) == bool(left)


def test_an_empty_queue_says_what_to_do() -> None:
    assert "sublet submit" in draw(Jobs(()), 0.0)


def test_a_name_cannot_write_over_the_table() -> None:
    drawn = line(row(name="a\nb\x1b[2J\rc"), 0.0)
    assert "\n" not in drawn
    assert "\x1b" not in drawn
    assert "a�b�[2J�c" in drawn


def test_a_reason_that_does_not_fit_goes_on_in_the_next_line() -> None:
    reason = "needs 6.0 GiB + 128 MiB for its process on gpu0, 4.2 GiB of 8.0 GiB free; 2 ahead"
    first, second = line(row(reason=reason), 0.0).split("\n")
    assert first.startswith("   #13  train.py         waiting   needs 6.0 GiB")
    assert f"{first[35:]} {second.strip()}" == reason


def test_how_a_job_failed_is_below_it() -> None:
    ended = row(state="finished", reason="exit code 3", code=3, cause="exited", ran=1.0)
    first, second = line(ended, 0.0).split("\n")
    assert "failed" in first
    assert second.strip() == "exit code 3; sublet logs 13"
    seen = replace(ended, foreground=True)
    assert line(seen, 0.0).split("\n")[1].strip() == "exit code 3"
    done = row(state="finished", reason="done", code=0, cause="exited", ran=1.0)
    assert line(done, 0.0).count("\n") == 0


def test_a_job_that_was_cancelled_takes_one_line() -> None:
    text = line(row(state="finished", cause="cancelled", reason="cancelled", code=143), 0.0)
    assert text.count("cancelled") == 1
