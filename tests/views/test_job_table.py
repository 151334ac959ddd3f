"""Any job fits the table of `sublet ps`."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from sublet.views.job_table import details, draw, sentence
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


def table(*jobs: JobRow, width: int = 80, left: int = 0, live: int = 20) -> list[str]:
    return draw(Jobs(jobs, 1, 2, left), 100.0, width, live, 5).split("\n")


@given(st.lists(rows, max_size=5, unique_by=lambda one: one.id), st.integers(80, 200))
def test_each_job_takes_one_line_that_fits_and_moves_no_cursor(
    jobs: list[JobRow], width: int
) -> None:
    drawn = draw(Jobs(tuple(jobs)), 0.0, width, 20, 5)
    lines = drawn.split("\n")
    assert max(map(cell_len, lines)) <= width
    assert not set(drawn) & set(map(chr, [*range(10), *range(11, 32), 127, *range(128, 160)]))
    for one in jobs:
        assert sum(line.split()[:1] == [f"#{one.id}"] for line in lines) == 1


@given(rows, st.floats(0, 1e10))
def test_the_details_of_any_job_fit(one: JobRow, now: float) -> None:
    lines = details(one, now, 80).split("\n")
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"#{one.id} ")


def test_what_is_left_out_is_counted() -> None:
    assert table(row(), left=7)[-1] == "1 running, 2 waiting; 7 not shown: sublet ps --all"
    assert table(row(), row(id=14, name="b"), live=1)[-1].endswith("1 not shown: sublet ps --all")
    ended = [
        row(id=number, state="finished", cause="exited", code=0, reason="done")
        for number in range(6)
    ]
    lines = table(*ended)
    assert lines[-1] == "more have ended: sublet ps --all"
    assert lines[1].split()[0] == "#1"


def test_an_empty_queue_says_what_to_do() -> None:
    assert "sublet submit" in table()[0]


def test_a_name_cannot_write_over_the_table() -> None:
    drawn = table(row(name="a\nb\x1b[2J\rc"), width=200)
    assert len(drawn) == 2
    assert "a�b�[2J�c" in drawn[1]


def test_why_a_job_waits_takes_the_rest_of_its_line() -> None:
    reason = "needs 6.0 GiB + 128 MiB for its process on gpu0, 4.2 GiB of 8.0 GiB free; 2 ahead"
    assert table(row(reason=reason), width=200)[1].endswith(f"waiting  {reason}")
    short = table(row(reason=reason))[1]
    assert short.endswith("…")
    assert reason in details(row(reason=reason), 0.0, 200)


def test_how_a_job_ended_is_in_a_column() -> None:
    exited = row(state="finished", reason="exit code 3", code=3, cause="exited", ran=1.0)
    memory = row(id=14, state="finished", reason="out of memory: …", code=1, cause="lease exceeded")
    killed = row(id=15, state="finished", reason="killed", code=137, cause="signalled")
    lines = table(exited, memory, killed, width=120)
    assert lines[0].split()[-2:] == ["exit", "note"]
    assert lines[1].split()[-1] == "3"
    assert "memory" in lines[2]
    assert "SIGKILL" in lines[3]
    assert lines[4] == "how a job ended: sublet ps 15"


def test_elements_of_an_array_that_are_alike_share_a_line() -> None:
    array = [
        row(id=number, name=f"a[{number}]", array=13, index=number, reason="array limit: 2")
        for number in range(13, 23)
    ]
    running = row(id=12, name="a[12]", array=12, state="running", reason="", since=0.0, ceiling=1)
    lines = table(running, *array)
    assert [line.split()[:2] for line in lines[1:]] == [["#12", "a[12]"], ["#13-22", "a[13-22]"]]


def test_a_sentence_says_how_a_job_ended() -> None:
    done = row(state="finished", reason="done", code=0, cause="exited", ran=4.1, peak=2**30)
    assert sentence(done) == "#13 train.py: done, ran 4.1 s, peak 1.0 GiB"
