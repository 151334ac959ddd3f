"""From a probe's short runs to a plan for training in so much memory."""

from hypothesis import given
from hypothesis import strategies as st

from sublet.policy.probe_forecast import Pass
from sublet.policy.training_plan import plan
from sublet.units import MiB


def passes(base: int, row: int, full: int = 256, weights: int = 0) -> list[Pass]:
    return [
        Pass(
            share,
            int(base + row * full * share),
            rows=int(full * share),
            full=full,
            seconds=0.01 * full * share,
            epochs=10,
            steps=20,
            weights=weights,
        )
        for share in (0.25, 0.5)
    ]


def test_a_batch_that_fits_stays_whole() -> None:
    planned = plan(passes(10 * MiB, MiB), 420 * MiB)
    assert planned is not None
    assert (planned.pieces, planned.rows, planned.whole >> 20) == (1, 256, 266)
    assert planned.seconds is not None
    assert round(planned.seconds) == round(2.56 * 200)


def test_a_batch_that_does_not_fit_is_split_beside_the_sums_of_its_gradients() -> None:
    planned = plan(passes(10 * MiB, MiB, weights=20 * MiB), 260 * MiB)
    assert planned is not None
    assert (planned.pieces, planned.rows, planned.peak >> 20) == (2, 128, 158)
    tighter = plan(passes(10 * MiB, MiB, weights=40 * MiB), 260 * MiB)
    assert tighter is not None
    assert tighter.rows == 64


def test_what_does_not_fit_in_micro_batches_says_by_how_much() -> None:
    planned = plan(passes(100 * MiB, MiB), 100 * MiB)
    assert planned is not None
    assert planned.lacks >> 20 == 60
    enough = plan(passes(100 * MiB, MiB), 100 * MiB + planned.lacks)
    assert enough is not None
    assert (enough.rows, enough.lacks) == (planned.rows, 0)


def test_a_program_without_batches_has_no_plan() -> None:
    assert plan([Pass(1.0, MiB)], MiB) is None


@given(st.integers(0, 10**9), st.integers(1, 10**7), st.integers(8, 1000), st.integers(1, 10**10))
def test_a_plan_fits_or_says_what_it_lacks(base: int, row: int, full: int, ceiling: int) -> None:
    planned = plan(passes(base, row, full), ceiling)
    assert planned is not None
    assert planned.peak <= ceiling or planned.lacks
