"""A long batch is not a hang: who is interrupted, who is hung, and who is left alone."""

import pytest

from sublet.engine.fair_queue import BatchProgress
from sublet.serving.control.watchdog import Findings, Patience, Watchdog

LONGEST = 600.0
PATIENCE = Patience(30.0, LONGEST)
NOTHING = Findings((), (), False)


def run(seconds: float, **changes: float | bool) -> BatchProgress:
    answer = {"expected": 0.0, "wanted": True, "holds_up": 0.0, **changes}
    return BatchProgress(number=1, model="m", version=1, seconds=seconds, **answer)  # type: ignore[arg-type]


def judged(*moments: tuple[float, BatchProgress]) -> list[Findings]:
    dog = Watchdog(PATIENCE)
    return [dog.judge([one], now) for now, one in moments]


def test_a_batch_that_holds_nobody_up_may_take_its_time() -> None:
    for seconds in (10.0, 500.0):
        moments = [(seconds + n, run(seconds + n, wanted=False)) for n in (0, 20, 40)]
        assert judged(*moments) == [NOTHING] * 3
    assert judged((0.0, run(10_000.0))) == [NOTHING]


def test_a_batch_that_somebody_waits_for_may_hold_others_up_for_long_but_not_for_ever() -> None:
    (before,) = judged((0.0, run(LONGEST - 1, holds_up=500.0)))
    assert before == Findings((), (), True)
    (after,) = judged((0.0, run(LONGEST, holds_up=500.0)))
    assert len(after.interrupt) == 1


def test_a_batch_that_nobody_waits_for_and_that_holds_others_up_is_interrupted() -> None:
    dog = Watchdog(PATIENCE)
    assert dog.judge([run(31.0, wanted=False, holds_up=25.0)], 0.0) == NOTHING
    verdict = dog.judge([run(41.0, wanted=False, holds_up=35.0)], 10.0)
    assert [one.number for one in verdict.interrupt] == [1]
    # Once is enough.
    assert not dog.judge([run(42.0, wanted=False, holds_up=36.0)], 11.0).interrupt


@pytest.mark.parametrize(("expected", "ended"), [(13.0, True), (14.0, False), (60.0, False)])
def test_it_is_not_if_batches_of_its_model_take_about_so_long(expected: float, ended: bool) -> None:
    one = {"wanted": False, "holds_up": 40.0, "expected": expected}
    _, verdict = judged((0.0, run(30.0, **one)), (10.0, run(40.0, **one)))
    assert bool(verdict.interrupt) is ended


def test_a_caller_who_comes_back_is_waited_for() -> None:
    moments = (
        (0.0, run(30.0, wanted=False, holds_up=20.0)),
        (5.0, run(35.0, wanted=True, holds_up=20.0)),
        (12.0, run(42.0, wanted=False, holds_up=20.0)),
    )
    assert judged(*moments) == [NOTHING] * 3


def test_one_that_nobody_waits_for_takes_a_place_for_long_and_not_for_ever() -> None:
    one = {"wanted": False, "holds_up": 0.0}
    _, verdict = judged((0.0, run(590.0, **one)), (10.0, run(600.0, **one)))
    assert verdict.interrupt


def test_what_goes_on_after_it_was_interrupted_is_hung_if_it_still_harms() -> None:
    dog = Watchdog(PATIENCE)
    dog.judge([run(31.0, wanted=False, holds_up=30.0)], 0.0)
    assert dog.judge([run(41.0, wanted=False, holds_up=40.0)], 10.0).interrupt
    assert not dog.judge([run(50.0, wanted=False, holds_up=49.0)], 19.0).hung
    assert not dog.judge([run(51.0, wanted=False, holds_up=0.0)], 20.0).hung
    assert dog.judge([run(52.0, wanted=False, holds_up=51.0)], 21.0).hung


def test_an_engine_that_begins_nothing_is_stalled() -> None:
    assert [one.stalled for one in judged((0.0, run(29.0, holds_up=29.0)))] == [False]
    assert [one.stalled for one in judged((0.0, run(30.0, holds_up=30.0)))] == [True]
