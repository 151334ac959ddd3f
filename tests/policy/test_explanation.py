"""What `sublet explain` says."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sublet.domain.history import Explanation, Forecast, History, Point, Run
from sublet.domain.lease import Lease
from sublet.policy.explanation import forecast_lines, gives, lines
from sublet.units import GiB, MiB

LEASE = Lease("cpu", 121 * MiB, 221 * MiB, "peak of 1 earlier run, and a margin", roomy=True)
ONE = Run(12, 1.0, 4 * GiB, 100 * MiB)
TOLD = Explanation(
    job=13,
    name="train.py",
    attempt=1,
    state="running",
    ask="auto",
    device="cpu",
    capacity=16 * GiB,
    ever=15 * GiB,
    history=History((ONE,)),
    lease=LEASE,
)
FORECAST = Forecast(
    200 * MiB, 150 * MiB, 250 * MiB, (Point(0.25, 60 * MiB), Point(0.5, 106 * MiB)), "short runs"
)

_runs = st.builds(
    Run,
    job=st.integers(0, 10**6),
    at=st.floats(0, 2e9),
    ceiling=st.integers(MiB, 80 * GiB),
    peak=st.none() | st.integers(0, 80 * GiB),
    outside=st.none() | st.integers(0, GiB),
    exceeded=st.booleans(),
    good=st.booleans(),
    batch=st.none() | st.integers(1, 10**9 - 1),
    likeness=st.sampled_from(["same", "batch", "other"]),
    edited=st.booleans(),
)


@given(
    st.lists(_runs, max_size=15).map(tuple),
    st.none() | st.integers(1, 10**6),
    st.sampled_from([None, FORECAST]),
    st.sampled_from(["auto", "grow", "2.0 GiB"]),
    st.sampled_from([None, LEASE]),
)
def test_any_history_is_explained_within_80_columns(
    runs: tuple[Run, ...],
    batch: int | None,
    forecast: Forecast | None,
    ask: str,
    lease: Lease | None,
) -> None:
    told = replace(TOLD, history=History(runs, batch, forecast), ask=ask, lease=lease)
    text = lines(told)
    assert max(map(len, text)) <= 80
    assert text[0].startswith("#13 train.py")


def test_it_names_the_runs_the_margin_and_the_decision() -> None:
    text = "\n".join(lines(TOLD))
    assert "121 MiB on cpu (peak of 1 earlier run, and a margin)" in text
    assert "process 100 MiB more for the process itself, as usual for a warm start" in text
    assert "peak    100 MiB, of the one run that counts" in text
    assert "margin  128 MiB: less is never added" in text
    assert "#12" in text
    assert "gives   228 MiB" in text


def test_the_margin_of_a_larger_program_is_a_share_of_it() -> None:
    text = "\n".join(lines(replace(TOLD, history=History((replace(ONE, peak=GiB),)))))
    assert "margin  26%: 1 run seen" in text


def test_it_says_what_the_process_part_rests_on() -> None:
    runs = (replace(ONE, outside=90 * MiB), replace(ONE, outside=600 * MiB, start="cold"))
    text = "\n".join(lines(replace(TOLD, history=History(runs))))
    assert "process 100 MiB more for the process itself; 90.0 MiB were seen after a warm" in text


def test_it_says_which_runs_do_not_count_and_why() -> None:
    out = replace(ONE, job=11, exceeded=True, good=False, ceiling=64 * MiB)
    other = replace(ONE, job=10, likeness="other")
    text = lines(replace(TOLD, history=History((out, ONE, other))))
    assert any("#11" in line and "out of memory" in line for line in text)
    assert any("#10" in line and line.endswith("no, other args") for line in text)
    assert any("128 MiB or more: that was just enough" in line for line in text)
    text = lines(replace(TOLD, history=History((out, other))))
    assert any("64.0 MiB was too little" in line for line in text)


def test_it_shows_the_line_in_the_batch_size() -> None:
    runs = tuple(
        replace(ONE, job=batch, batch=batch, likeness="batch", peak=(100 + batch) * MiB)
        for batch in (16, 32, 64)
    )
    text = "\n".join(lines(replace(TOLD, history=History(runs, 48))))
    assert "100 MiB + 1.0 MiB for each item of the batch" in text
    assert "at batch 48" in text


def test_it_says_what_to_do_for_a_program_never_seen() -> None:
    text = "\n".join(lines(replace(TOLD, history=History())))
    assert "25% of cpu, 4.0 GiB" in text
    assert "sublet probe" in text


def test_a_run_that_was_the_first_is_what_later_ones_are_sized_by() -> None:
    text = "\n".join(lines(replace(TOLD, state="finished", history=History(), peak=5 * MiB)))
    assert "later runs are sized by what this one held" in text
    assert "sublet probe" not in text


def test_runs_without_tensorflow_are_not_said_to_be_missing() -> None:
    text = "\n".join(lines(replace(TOLD, history=History((replace(ONE, peak=None),)))))
    assert "no run of it has started TensorFlow: 2% of cpu" in text
    assert "sublet probe" not in text


def test_the_smallest_lease_is_said_where_it_decides() -> None:
    small = replace(TOLD, capacity=512 * MiB)
    text = "\n".join(lines(replace(small, history=History((replace(ONE, peak=3 * MiB),)))))
    assert "least   16.0 MiB" in text
    assert "gives   16.0 MiB" in text
    assert "least  " not in "\n".join(lines(TOLD))


def test_a_memory_that_was_asked_for_is_said_to_be_so() -> None:
    text = "\n".join(lines(replace(TOLD, ask="2.0 GiB")))
    assert "what was learned has no say" in text
    assert "auto    would ask for 228 MiB" in text


def test_what_the_device_cannot_give_is_said() -> None:
    told = replace(TOLD, ever=64 * MiB)
    assert gives(told) == "228 MiB, of which cpu can give 64.0 MiB"


def test_a_forecast_shows_its_interval_and_what_it_rests_on() -> None:
    text = forecast_lines(FORECAST, "train.py")
    assert text[0] == "train.py will need about 200 MiB"
    assert "between 150 MiB and 250 MiB" in text[1]
    assert any("25% of the batch: peak 60.0 MiB" in line for line in text)
