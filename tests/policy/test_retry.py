"""Whether a job is tried again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sublet.domain.job import Again, Job, Outcome, Past
from sublet.policy.retry import FIRST_DELAY, LONGEST_DELAY, LOOP, QUICK, again, loops
from sublet.units import MiB
from support.jobs import CLIENT, job, lease, outcomes, running

LONG = QUICK * 10
FAILED = Outcome("exited", 3, ran=LONG)


def submitted(**spec: object) -> Job:
    """A job that runs on its own."""
    one = job(1, running(lease()))
    return replace(one, spec=replace(one.spec, **({"client": None} | spec)))


def after(one: Job, *told: Outcome) -> Job:
    """The same job with such attempts behind it."""
    return replace(one, past=tuple(Past(n, 1.0, each) for n, each in enumerate(told, 1)))


def test_a_failure_is_final_unless_retries_were_asked_for() -> None:
    assert again(submitted(), FAILED, None) is None
    assert again(submitted(retries=1), FAILED, None) is not None


def test_success_is_never_tried_again() -> None:
    assert again(submitted(retries=5), Outcome("exited", 0), None) is None


@pytest.mark.parametrize("told", [FAILED, Outcome("signalled", 139, ran=LONG)])
def test_retries_are_counted_and_delays_grow_up_to_a_bound(told: Outcome) -> None:
    one = submitted(retries=12)
    delays = []
    while (terms := again(one, told, None)) is not None:
        assert not terms.forgiven
        assert f"retry {one.failures + 1} of 12" in terms.why
        delays.append(terms.delay)
        one = replace(one, failures=one.failures + 1)
    assert len(delays) == 12
    assert delays[:3] == [FIRST_DELAY, 2 * FIRST_DELAY, 4 * FIRST_DELAY]
    assert delays[-1] == LONGEST_DELAY
    assert delays == sorted(delays)


@pytest.mark.parametrize(
    "told",
    [
        Outcome("exited", 42, ran=LONG),
        Outcome("preempted", 143, ran=LONG),
        Outcome("lost", 255, ran=LONG),
    ],
)
def test_what_is_no_failure_of_its_own_brings_it_back_at_once(told: Outcome) -> None:
    terms = again(submitted(), told, None)
    assert terms is not None
    assert (terms.delay, terms.forgiven) == (0.0, True)
    assert again(submitted(requeue=False), told, None) is None


def test_one_that_may_have_ended_well_is_done_again_only_where_that_was_asked_for() -> None:
    """Nobody saw its end."""
    told = Outcome("lost", 255, ran=LONG, unseen=True)
    assert again(submitted(), told, None) is None
    terms = again(submitted(retries=1), told, None)
    assert terms is not None
    assert not terms.forgiven


def test_a_signal_whose_code_looks_like_42_asks_for_nothing() -> None:
    assert again(submitted(), Outcome("signalled", 42, ran=LONG), None) is None


@pytest.mark.parametrize("cause", ["cancelled", "time limit", "stopped", "dependency"])
def test_what_was_ended_on_purpose_stays_ended(cause: str) -> None:
    told = Outcome(cause, 143, ran=LONG)  # type: ignore[arg-type]
    assert again(submitted(retries=5), told, None) is None


def test_out_of_memory_brings_a_larger_lease_if_there_is_one_and_it_may_grow() -> None:
    told = Outcome("lease exceeded", 1, ran=0.1)
    terms = again(submitted(on_oom="grow"), told, 768 * MiB)
    assert terms is not None
    assert (terms.least, terms.forgiven, terms.delay) == (768 * MiB, True, 0.0)
    assert "512 MiB" in terms.why
    assert again(submitted(on_oom="grow"), told, None) is None
    assert again(submitted(on_oom="fail"), told, 768 * MiB) is None


@given(outcomes)
def test_a_job_in_the_foreground_only_comes_back_for_memory(told: Outcome) -> None:
    one = submitted(client=CLIENT, retries=5, on_oom="grow")
    assert (again(one, told, MiB) is not None) == (told.cause == "lease exceeded")


@pytest.mark.parametrize(
    "told", [Outcome("exited", 3), Outcome("exited", 42), Outcome("signalled", 139)]
)
def test_a_crash_loop_is_not_gone_on_with(told: Outcome) -> None:
    one = submitted(retries=99)
    for count in range(LOOP - 1):
        assert isinstance(again(after(one, *[told] * count), told, None), Again)
    assert again(after(one, *[told] * (LOOP - 1)), told, None) is None


def test_it_is_no_loop_when_work_was_done_or_the_endings_differ() -> None:
    quick = Outcome("exited", 3)
    for past in ([quick, FAILED], [quick, Outcome("exited", 4)], [quick]):
        assert not loops(after(submitted(), *past), quick)
    assert not loops(after(submitted(), quick, quick), FAILED)


@pytest.mark.parametrize("cause", ["preempted", "lease exceeded", "cancelled", "time limit"])
def test_what_others_or_its_lease_did_to_it_is_no_crash(cause: str) -> None:
    told = Outcome(cause, 143)  # type: ignore[arg-type]
    assert not loops(after(submitted(), *[told] * LOOP), told)


@given(outcomes, st.integers(0, 30), st.integers(0, 30))
def test_no_job_is_tried_for_ever_for_failing(told: Outcome, retries: int, failures: int) -> None:
    one = replace(submitted(retries=retries), failures=failures)
    terms = again(one, told, None)
    if terms is not None and not terms.forgiven:
        assert failures < retries
        assert 0 < terms.delay <= LONGEST_DELAY
