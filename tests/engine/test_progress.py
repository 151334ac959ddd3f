"""What an engine says of the batches that run: who waits for them, and whom they hold up."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sublet.engine.fair_queue import BatchProgress, FairQueue, RunningBatch
from sublet.engine.model_options import Options
from sublet.engine.requests import BatchKind, Request
from support.numpy_engine import NumpyEngine, floats, numpy_engine
from support.sandbox import wait_for

KIND = BatchKind("rows")
CLIENT = SimpleNamespace(dead=False)


def schedule(slots: int, *models: str) -> FairQueue:
    made = FairQueue(slots)
    for name in models:
        made.add(name, 1, Options(largest=4, enqueued=100)).present = True
    return made


def begin(made: FairQueue, model: str, now: float, **reply: Any) -> RunningBatch:
    made.put(made.queues[model, 1], Request(KIND, 1, now, **{"client": CLIENT, **reply}))
    run, _ = made.take(now)
    assert run is not None
    return run


def held_up(made: FairQueue, now: float) -> list[float]:
    return [one.holds_up for one in made.progress(now)]


def test_a_batch_holds_nobody_up_while_others_can_begin_or_nobody_asks() -> None:
    made = schedule(2, "a", "b")
    begin(made, "a", 1.0)
    made.put(made.queues["b", 1], Request(KIND, 1, 2.0))
    assert held_up(made, 50.0) == [0.0]
    full = schedule(1, "a", "b")
    begin(full, "a", 1.0)
    assert held_up(full, 50.0) == [0.0]


def test_batches_that_have_all_places_hold_up_whoever_asks_also_if_it_gives_up_soon() -> None:
    made = schedule(2, "a", "b", "c")
    begin(made, "a", 1.0)
    begin(made, "b", 2.0)
    for now in (3.0, 4.0, 5.0):
        asked = Request(KIND, 1, now, client=CLIENT)
        made.put(made.queues["c", 1], asked)
        made.queues["c", 1].give_up(asked)
    assert held_up(made, 12.0) == [10.0, 10.0]


def test_a_model_that_runs_one_batch_at_a_time_holds_up_itself() -> None:
    made = schedule(2, "a", "b")
    made.queues["a", 1].exclusive = True
    begin(made, "a", 1.0)
    made.put(made.queues["a", 1], Request(KIND, 1, 2.0))
    assert held_up(made, 11.0) == [10.0]


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        ({}, True),
        ({"deadline": 5.0}, False),
        ({"deadline": 50.0}, True),
        ({"client": SimpleNamespace(dead=True)}, False),
    ],
)
def test_a_batch_is_wanted_while_a_caller_waits_for_it(reply: dict[str, Any], wanted: bool) -> None:
    made = schedule(1, "a")
    run = begin(made, "a", 1.0, **reply)
    (now,) = made.progress(10.0)
    assert (now.model, now.seconds, now.wanted) == ("a", 9.0, wanted)
    run.batch.parts[0].request.abandoned = True
    assert not made.progress(10.0)[0].wanted
    made.finish(run, 9.0, 9.0)
    assert made.progress(10.0) == []


def pulse(engine: NumpyEngine) -> list[BatchProgress]:
    return msgspec.convert(engine.client.ask({"ask": "pulse"}), list[BatchProgress])


def test_an_engine_tells_how_its_batches_stand_and_can_be_told_to_interrupt(
    tmp_path: Path,
) -> None:
    with numpy_engine(tmp_path) as engine:
        engine.add("held")
        assert pulse(engine) == []
        future = engine.client.submit("held", 1, "serving_default", {"x": floats([[1]])})
        (run,) = wait_for(lambda: pulse(engine), "it runs")
        assert (run.model, run.version, run.wanted) == ("held", 1, True)
        future.cancel()
        wait_for(lambda: not pulse(engine)[0].wanted, "it knows that nobody waits")
        engine.client.ask({"ask": "interrupt", "model": "held", "version": 1})
        # A function cannot be interrupted: it runs on, and the model is known all the same.
        assert len(pulse(engine)) == 1
        engine.touch("go")
        wait_for(lambda: not pulse(engine), "it has come to its end")
        answer = engine.client.call("held", 1, "serving_default", {"x": floats([[1]])})
        assert answer.rows == 1
