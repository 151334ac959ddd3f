"""A load on a made-up model and a made-up clock."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sublet.channel.client_protocol import Answer
from sublet.channel.codes import Code
from sublet.errors import ServingError, WorldError
from sublet.tools.loadtest.figures import Figures
from sublet.tools.loadtest.load import Load

LONG = 1000.0


class Model:
    """Answers one call after another; each takes `latency` of its own clock."""

    rows = 2

    def __init__(self, latency: Callable[[int], float] = lambda number: 0.1) -> None:
        self.now = 0.0
        self.answered = self.flying = self.most = 0
        self.silent = False
        self.fails: Callable[[int], bool] = lambda number: False
        self._latency = latency

    def clock(self) -> float:
        return self.now

    async def ready(self, concurrency: int) -> None:
        pass

    def call(self) -> "asyncio.Future[Answer]":
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.flying += 1
        self.most = max(self.most, self.flying)
        if not self.silent:
            asyncio.get_running_loop().call_soon(self._answer, future)
        return future

    async def close(self) -> None:
        pass

    def _answer(self, future: "asyncio.Future[Answer]") -> None:
        self.flying -= 1
        self.answered += 1
        self.now += self._latency(self.answered)
        if self.fails(self.answered):
            future.set_exception(ServingError("no", Code.UNAVAILABLE))
        else:
            future.set_result(Answer({}, 0.01, 0.02, 4))


def run(step: Coroutine[Any, Any, Figures]) -> Figures:
    return asyncio.run(step)


def test_so_many_calls_are_in_flight_and_none_is_left_behind() -> None:
    model = Model()
    reply = run(Load(model, clock=model.clock).step(5, LONG))
    assert (model.most, model.flying) == (5, 0)
    assert reply.concurrency == 5
    assert reply.failed == 0


def test_a_steady_model_is_measured_in_four_windows() -> None:
    model = Model()
    reply = run(Load(model, clock=model.clock).step(1, LONG))
    assert reply.stable
    assert reply.rate == pytest.approx(10)
    assert reply.rows == pytest.approx(20)
    assert reply.p99 == pytest.approx(0.1)
    assert reply.queued == pytest.approx(0.01)
    assert reply.computed == pytest.approx(0.02)
    assert reply.seconds == pytest.approx(3 * LONG / 20, rel=0.01)
    assert model.now < LONG / 4


def test_a_model_that_gets_slower_is_measured_for_all_of_its_time_and_is_not_stable() -> None:
    model = Model(lambda number: 0.1 * 1.01**number)
    reply = run(Load(model, clock=model.clock).step(1, LONG))
    assert not reply.stable
    assert model.now >= LONG


def test_callers_that_pause_are_not_all_in_flight_at_once_and_are_answered_all_the_same() -> None:
    model = Model()
    load = Load(model, clock=model.clock)
    load.pause = 0.0001
    reply = run(load.step(50, 200.0))
    assert reply.requests >= 50
    assert model.flying == 0


def test_a_window_of_a_slow_model_waits_for_enough_answers() -> None:
    windows: list[Figures] = []
    model = Model(lambda number: LONG / 20)
    reply = run(Load(model, windows.append, model.clock).step(1, LONG))
    assert [one.requests for one in windows] == [20]
    assert reply.requests == 20


def test_some_calls_may_fail_and_are_counted_apart() -> None:
    model = Model()
    model.fails = lambda number: number % 10 == 0
    reply = run(Load(model, clock=model.clock).step(2, LONG / 10))
    assert reply.failed > 0
    assert reply.error == "no"
    assert reply.rate == pytest.approx(9, rel=0.05)


def test_a_model_that_only_fails_ends_the_step_with_what_it_says() -> None:
    model = Model()
    model.fails = lambda number: True
    with pytest.raises(ServingError, match="no"):
        run(Load(model, clock=model.clock).step(2, LONG))


def test_a_model_that_never_answers_ends_the_step_and_says_what_to_do() -> None:
    model = Model()
    model.silent = True

    async def measure() -> Figures:
        return await asyncio.wait_for(Load(model).step(2, 0.05), 30)

    with pytest.raises(WorldError, match=r"No call was answered in 0.05 s. Give it more --time"):
        run(measure())


def test_the_first_calls_say_why_a_model_does_not_answer() -> None:
    model = Model()
    model.fails = lambda number: True
    with pytest.raises(WorldError, match="does not answer: no If its inputs are at fault"):
        asyncio.run(Load(model, clock=model.clock).check(LONG))


def test_a_model_that_is_too_slow_for_the_steps_is_told_how_long_they_should_be() -> None:
    model = Model(lambda number: 3.0)
    with pytest.raises(WorldError, match=r"too long for steps of 10 s. Give it more: --time 13s"):
        asyncio.run(Load(model, clock=model.clock).check(10))


def test_a_call_that_was_held_up_once_does_not_make_a_model_too_slow() -> None:
    model = Model(lambda number: 0.1 if number == 2 else 100.0)
    assert asyncio.run(Load(model, clock=model.clock).check(LONG / 500)) == pytest.approx(0.1)


def test_a_step_that_is_cancelled_keeps_what_it_has_measured() -> None:
    model = Model(lambda number: 0.1 * 1.01**number)

    async def measure() -> Figures | None:
        windows: list[Figures] = []

        def reply(figures: Figures) -> None:
            windows.append(figures)
            if len(windows) == 2:
                task.cancel()

        load = Load(model, reply, model.clock)
        task = asyncio.create_task(load.step(1, LONG))
        with pytest.raises(asyncio.CancelledError):
            await task
        return load.cut

    cut = asyncio.run(measure())
    assert cut is not None
    assert cut.requests >= 20
