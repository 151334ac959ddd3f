"""The thread runner with plain functions: order, reports, what calls share and what they do not."""

from __future__ import annotations

import functools
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from sublet.inside.isolation import call_context
from sublet.inside.isolation.thread_runner import CallOutcome, ThreadRunner

LIMIT = 60
"""Seconds that a test waits before it has failed; never what it waits when it passes."""


class Reports:
    """Takes the reports of a runner; a test waits for them here."""

    def __init__(self) -> None:
        self.outcomes: dict[int, CallOutcome] = {}
        self.lines: list[str] = []
        self._change = threading.Condition()

    def done(self, number: int, outcome: CallOutcome) -> None:
        with self._change:
            self.outcomes[number] = outcome
            self._change.notify_all()

    def notify(self, line: str) -> None:
        with self._change:
            self.lines.append(line)
            self._change.notify_all()

    def wait_for(self, met: Callable[[], object]) -> None:
        with self._change:
            assert self._change.wait_for(met, LIMIT)

    def values(self) -> list[Any]:
        errors = [one.error for one in self.outcomes.values() if one.error]
        assert not errors
        return [self.outcomes[number].value for number in sorted(self.outcomes)]


@pytest.fixture
def reports() -> Reports:
    return Reports()


def run(reports: Reports, *functions: Callable[[], Any], threads: int = 4) -> list[Any]:
    runner = ThreadRunner("thread", threads, reports.done, notify=reports.notify)
    for number, function in enumerate(functions):
        runner.start(number, function, (), {})
    runner.close()
    return reports.values()


def test_calls_begin_in_order_of_arrival_and_so_many_at_a_time(reports: Reports) -> None:
    """Ten calls on three threads; none may go on before three are inside."""
    begun: list[int] = []
    inside: list[int] = []
    full = threading.Barrier(3, timeout=LIMIT)

    def call(number: int) -> int:
        begun.append(number)
        inside.append(number)
        most = len(inside)
        if number < 9:
            full.wait()
        inside.remove(number)
        return most

    values = run(reports, *(functools.partial(call, number) for number in range(10)), threads=3)
    assert max(values) <= 3
    # Three that begin together may write in any order.
    assert sorted(begun[:3]) == [0, 1, 2]
    assert all(place - 2 <= number <= place + 2 for place, number in enumerate(begun))


def test_arguments_reach_the_function_and_its_value_comes_back(reports: Reports) -> None:
    runner = ThreadRunner("thread", 1, reports.done)
    runner.start(7, divmod, (17, 5), {})
    runner.start(8, sorted, ([3, 1, 2],), {"reverse": True})
    runner.close()
    assert reports.values() == [(3, 2), [3, 2, 1]]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_a_call_raises_ends_that_call_and_no_other(
    reports: Reports, error: BaseException
) -> None:
    def fail() -> None:
        raise error

    runner = ThreadRunner("thread", 1, reports.done)
    runner.start(0, fail)
    runner.start(1, sys.exit, ("bye",))
    runner.start(2, lambda: "alive")
    runner.close()
    assert reports.outcomes[0].error is error
    assert isinstance(reports.outcomes[1].error, SystemExit)
    assert reports.outcomes[2] == CallOutcome("alive")


def test_close_returns_when_all_calls_have_ended_and_refuses_the_next(reports: Reports) -> None:
    """Also those that had not begun when it was asked."""
    go = threading.Event()
    runner = ThreadRunner("thread", 1, reports.done)
    for number in range(3):
        runner.start(number, go.wait, (LIMIT,))
    closer = threading.Thread(target=runner.close)
    closer.start()
    go.set()
    closer.join()
    assert reports.values() == [True] * 3
    with pytest.raises(RuntimeError, match="call 3 came after the runner was closed"):
        runner.start(3, len, ("",))


def test_a_report_that_fails_is_noted_and_costs_no_thread() -> None:
    lines: list[str] = []
    ended: list[int] = []

    def done(number: int, outcome: CallOutcome) -> None:
        if number == 0:
            raise OSError("the line is dead")
        ended.append(number)

    runner = ThreadRunner("thread", 1, done, notify=lines.append)
    runner.start(0, len, ("",))
    runner.start(1, len, ("",))
    runner.close()
    assert ended == [1]
    assert lines == ["the end of call 0 (len) could not be reported: OSError('the line is dead')"]


@pytest.mark.parametrize(
    ("isolation", "threads", "said"),
    [
        ("fork", 1, "isolation is 'fork': it can be thread or session"),
        ("thread", 0, "threads is 0: at least one is needed"),
    ],
)
def test_what_a_runner_cannot_be_is_said(isolation: str, threads: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ThreadRunner(isolation, threads, lambda number, outcome: None)


def test_a_call_finds_nothing_that_an_earlier_one_left_in_its_thread(reports: Reports) -> None:
    local = threading.local()

    def call() -> bool:
        found = hasattr(local, "left")
        local.left = True
        return found

    assert run(reports, call, call, call, threads=1) == [False] * 3


def test_a_thread_that_a_call_starts_works_for_that_call(reports: Reports) -> None:
    def call() -> tuple[str, str]:
        seen: list[str] = []
        thread = threading.Thread(target=lambda: seen.append(str(call_context.current())))
        thread.start()
        thread.join()
        return str(call_context.current()), seen[0]

    for own, handed_on in run(reports, call, call):
        assert own == handed_on
        assert own.startswith("call ")
    assert call_context.current() is None


def drawing(seed: int, both: threading.Barrier) -> list[float]:
    """Draws in step with another call, and in a thread of its own in between."""
    random.seed(seed)
    both.wait()
    numbers = [random.random()]
    both.wait()
    thread = threading.Thread(target=lambda: numbers.append(random.gauss(0, 1)))
    thread.start()
    thread.join()
    both.wait()
    numbers.append(random.randint(0, 10**9))
    return numbers


def test_calls_that_seed_get_the_numbers_they_would_get_alone(reports: Reports) -> None:
    alone = [drawing(seed, threading.Barrier(1)) for seed in (1, 1, 2)]
    three = threading.Barrier(3, timeout=LIMIT)
    assert run(reports, *(functools.partial(drawing, seed, three) for seed in (1, 1, 2))) == alone


def test_calls_start_from_what_was_seeded_before_them_and_change_nothing_outside(
    reports: Reports,
) -> None:
    before = random.getstate()
    try:
        random.seed(5)
        first = random.random()
        random.seed(5)
        assert run(reports, random.random, random.random, random.random) == [first] * 3
        assert random.random() == first
    finally:
        random.setstate(before)


def test_a_call_that_does_not_move_is_reported_again_and_again_and_one_that_does_is_not(
    reports: Reports,
) -> None:
    """One waits for ever at one place; the other is always seen at the same place, but moves."""
    go = threading.Event()

    def stand() -> str:
        go.wait()
        return "at last"

    def walk() -> int:
        steps = 0
        while not go.is_set():
            time.sleep(0.001)
            steps += 1
        return steps

    runner = ThreadRunner("thread", 2, reports.done, stuck_after=1.0, notify=reports.notify)
    runner.start(0, stand)
    runner.start(1, walk)
    reports.wait_for(lambda: len(reports.lines) == 2)
    go.set()
    runner.close()
    value, steps = reports.values()
    assert value == "at last"
    assert steps > 0
    for line in reports.lines:
        assert "stand) has not moved for " in line
        assert line.startswith("call 0 (")
        assert "in wait, from test_thread_runner.py:" in line
        assert "in stand" in line
