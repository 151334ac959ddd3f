"""Fairness between models: by the time that their batches take, and by their weights."""

from hypothesis import given
from hypothesis import strategies as st

from sublet.engine.fair_queue import FairQueue, FairShares, RunningBatch
from sublet.engine.model_options import Options
from sublet.engine.requests import BatchKind, Request

KIND = BatchKind("rows")


def served(weights: dict[str, float], costs: dict[str, float], rounds: int) -> dict[str, float]:
    """The time that each of these models gets when all of them always have something to do."""
    turns = FairShares()
    spent = dict.fromkeys(weights, 0.0)
    for _ in range(rounds):
        model = turns.choose([(name, 0.0) for name in weights])
        turn = turns.begin(model, 0.0, weights[model])
        turns.end(turn, costs[model], weights[model])
        spent[model] += costs[model]
    return spent


@given(
    st.dictionaries(st.sampled_from("abcd"), st.floats(0.25, 4), min_size=2),
    st.lists(st.floats(0.001, 0.1), min_size=4, max_size=4),
)
def test_busy_models_get_time_by_their_weights_whatever_a_batch_costs(
    weights: dict[str, float], each: list[float]
) -> None:
    costs = dict(zip("abcd", each, strict=True))
    spent = served(weights, {name: costs[name] for name in weights}, 400)
    share = {name: spent[name] / weight for name, weight in weights.items()}
    # Two models are never further apart than the last batch of each.
    bound = sum(costs[name] / weights[name] for name in weights)
    assert max(share.values()) - min(share.values()) <= bound


def test_a_model_that_was_away_has_no_claim_on_the_past() -> None:
    turns = FairShares()
    for _ in range(100):
        turns.end(turns.begin("busy", 0.0, 1), 1.0, 1)
    for expected in ("rare", "busy", "rare", "busy"):
        model = turns.choose([("busy", 0.0), ("rare", 0.0)])
        assert model == expected
        turns.end(turns.begin(model, 0.0, 1), 1.0, 1)


def test_one_request_of_a_quiet_model_waits_for_one_batch_of_a_flooded_one() -> None:
    schedule = FairQueue(1)
    for name in ("flooded", "quiet"):
        schedule.add(name, 1, Options(largest=4, enqueued=100)).present = True
    flooded, quiet = schedule.queues["flooded", 1], schedule.queues["quiet", 1]
    for _ in range(40):
        schedule.put(flooded, Request(KIND, 1, 0.0))
    order = []
    for turn in range(8):
        run, _ = schedule.take(1.0)
        assert run is not None
        if turn in (2, 5):
            schedule.put(quiet, Request(KIND, 1, 0.5))
        order.append(run.batch.queue.model)
        schedule.finish(run, 0.01, 0.01)
    assert order == ["flooded"] * 3 + ["quiet"] + ["flooded"] * 2 + ["quiet", "flooded"]


def test_a_model_of_a_higher_priority_goes_first() -> None:
    schedule = FairQueue(1)
    for name, priority in (("low", 0), ("high", 1)):
        options = Options.read({"max_batch_size": 1, "priority": priority})
        schedule.add(name, 1, options).present = True
    for name in ("low", "high", "low", "high"):
        schedule.put(schedule.queues[name, 1], Request(KIND, 1, 0.0))
    order = []
    while (run := schedule.take(1.0)[0]) is not None:
        order.append(run.batch.queue.model)
        schedule.finish(run, 0.01, 0.01)
    assert order == ["high", "high", "low", "low"]


def test_no_more_batches_run_than_there_are_slots() -> None:
    schedule = FairQueue(2)
    one = schedule.add("m", 1, Options(largest=1, enqueued=100))
    one.present = True
    for _ in range(5):
        schedule.put(one, Request(KIND, 1, 0.0))
    runs = [schedule.take(0.0)[0] for _ in range(2)]
    assert schedule.take(0.0) == (None, [])
    assert schedule.next_due(0.0) is None
    assert runs[0] is not None
    schedule.finish(runs[0], 0.1, 0.1)
    assert schedule.next_due(0.0) == 0.0
    assert schedule.take(0.0)[0] is not None


class _Quick:
    """What is asked of a signature."""

    quick = True


def test_a_batch_is_brief_only_while_no_other_model_is_asked() -> None:
    """Else the batches of both run side by side."""
    kind = BatchKind("rows")
    kind.bound = _Quick()
    schedule = FairQueue(2)
    for name in ("a", "b"):
        schedule.add(name, 1, Options(largest=1, enqueued=100)).present = True
    brief = []
    for at, other in ((0.0, False), (0.1, False), (0.2, True), (5.0, False)):
        schedule.put(schedule.queues["a", 1], Request(kind, 1, at))
        if other:
            schedule.put(schedule.queues["b", 1], Request(kind, 1, at))
        while (run := schedule.take(at)[0]) is not None:
            if run.batch.queue.model == "a":
                brief.append(run.brief)
            schedule.finish(run, 0.0001, 0.0001)
    assert brief == [False, True, False, True]  # Of the first nothing is known yet.


def test_a_flooded_model_leaves_the_last_slot_to_one_that_was_asked_lately() -> None:
    schedule = FairQueue(2)
    for name in ("flooded", "quiet"):
        queue = schedule.add(name, 1, Options(largest=1, enqueued=100))
        queue.present, queue.seconds = True, 0.01
    flooded, quiet = schedule.queues["flooded", 1], schedule.queues["quiet", 1]
    schedule.put(quiet, Request(KIND, 1, 0.0))
    for _ in range(10):
        schedule.put(flooded, Request(KIND, 1, 0.0))
    first, second = (schedule.take(0.0)[0] for _ in range(2))
    assert first is not None
    assert second is not None
    assert {run.batch.queue.model for run in (first, second)} == {"flooded", "quiet"}
    busy, free = (first, second) if first.batch.queue is flooded else (second, first)
    schedule.finish(free, 0.01, 0.01)
    assert schedule.take(0.1) == (None, [])
    assert schedule.next_due(0.1) is None
    # Its own batch is done: it goes on, with one at a time.
    schedule.finish(busy, 0.01, 0.01)
    assert schedule.take(0.1)[0] is not None
    assert schedule.take(0.1) == (None, [])
    # The other one was not asked for long.
    assert schedule.take(2.0)[0] is not None


def test_weights_count_for_every_slot_when_several_models_are_flooded() -> None:
    schedule = FairQueue(2)
    for name, weight in (("light", 1.0), ("heavy", 3.0)):
        queue = schedule.add(name, 1, Options(largest=1, enqueued=1000, weight=weight))
        queue.present, queue.seconds = True, 0.01
        for _ in range(400):
            schedule.put(queue, Request(KIND, 1, 0.0))
    begun = {"light": 0, "heavy": 0}
    for _ in range(100):
        runs = [schedule.take(0.1)[0] for _ in range(2)]
        for run in runs:
            assert run is not None
            begun[run.batch.queue.model] += 1
            schedule.finish(run, 0.01, 0.01)
    assert abs(begun["heavy"] - 150) <= 2
    assert abs(begun["light"] - 50) <= 2


def test_beside_the_only_batch_of_a_quiet_model_a_flooded_one_begins_none() -> None:
    schedule = FairQueue(2)
    for name in ("flooded", "quiet"):
        queue = schedule.add(name, 1, Options(largest=1, enqueued=100))
        queue.present, queue.seconds = True, 0.01
    flooded, quiet = schedule.queues["flooded", 1], schedule.queues["quiet", 1]
    for _ in range(10):
        schedule.put(flooded, Request(KIND, 1, 0.0))
    before = schedule.take(0.0)[0]
    schedule.put(quiet, Request(KIND, 1, 0.0))
    beside = schedule.take(0.0)[0]
    assert before is not None
    assert beside is not None
    assert beside.batch.queue is quiet
    schedule.finish(before, 0.01, 0.01)
    assert schedule.take(0.0) == (None, [])
    assert schedule.next_due(0.0) is None
    schedule.finish(beside, 0.01, 0.01)
    assert schedule.take(0.0)[0] is not None


def test_a_quiet_model_that_has_had_its_share_keeps_nobody_waiting() -> None:
    schedule = FairQueue(2)
    for name in ("flooded", "quiet"):
        queue = schedule.add(name, 1, Options(largest=1, enqueued=100))
        queue.present, queue.seconds = True, 0.01
    flooded, quiet = schedule.queues["flooded", 1], schedule.queues["quiet", 1]
    for _ in range(10):
        schedule.put(flooded, Request(KIND, 1, 0.0))
    run = schedule.take(0.0)[0]
    assert run is not None
    schedule.finish(run, 0.01, 0.01)
    began = 0
    for _ in range(4):
        schedule.put(quiet, Request(KIND, 1, 0.0))
        runs = [one for one in (schedule.take(0.0)[0], schedule.take(0.0)[0]) if one is not None]
        began += sum(one.batch.queue is flooded for one in runs)
        for one in runs:
            schedule.finish(one, 0.01, 0.01)
    assert began >= 3


def test_short_batches_may_have_every_slot() -> None:
    schedule = FairQueue(2)
    for name in ("flooded", "quiet"):
        queue = schedule.add(name, 1, Options(largest=1, enqueued=100))
        queue.present, queue.seconds = True, 0.001
    schedule.put(schedule.queues["quiet", 1], Request(KIND, 1, 0.0))
    run = schedule.take(0.0)[0]
    assert run is not None
    schedule.finish(run, 0.001, 0.001)
    for _ in range(10):
        schedule.put(schedule.queues["flooded", 1], Request(KIND, 1, 0.0))
    assert all(schedule.take(0.1)[0] is not None for _ in range(2))


def test_what_waits_for_a_model_that_is_served_no_more_is_handed_back() -> None:
    schedule = FairQueue(1)
    one = schedule.add("m", 1, Options())
    request = Request(KIND, 1, 0.0)
    schedule.put(one, request)
    assert schedule.remove("m", 1) == [request]
    assert schedule.take(0.0) == (None, [])
    assert one.removed


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=60), st.integers(1, 3))
def test_everything_that_waits_comes_to_its_turn(drawn: list[tuple[int, int]], slots: int) -> None:
    schedule = FairQueue(slots)
    queues = [schedule.add("abcd"[n], 1, Options(largest=4, enqueued=1000)) for n in range(4)]
    for queue in queues:
        queue.present = True
    for number, rows in drawn:
        assert schedule.put(queues[number], Request(KIND, rows, 0.0)) is None
    left = sum(rows for _, rows in drawn)
    running: list[RunningBatch] = []
    while left:
        run, expired = schedule.take(1.0)
        assert not expired
        if run is None:
            schedule.finish(running.pop(0), 0.1, 0.1)
            continue
        running.append(run)
        assert len(running) <= slots
        left -= run.batch.rows
    assert schedule.next_due(1.0) is None


def test_of_two_suspects_one_runs_at_a_time_and_others_run_beside_it() -> None:
    schedule = FairQueue(4)
    for name in ("one", "other", "innocent"):
        queue = schedule.add(name, 1, Options(largest=1))
        queue.present = True
        queue.suspect = 0.0 if name == "innocent" else 100.0
        schedule.put(queue, Request(KIND, 1, 0.0))
    first, second = taken(schedule, 1.0), taken(schedule, 1.0)
    assert {first.batch.queue.model, second.batch.queue.model} == {"one", "innocent"}
    assert schedule.take(1.0) == (None, [])
    assert schedule.next_due(1.0) is None  # Whoever watches would else not sleep.
    schedule.finish(first, 0.001, 0.001)
    schedule.finish(second, 0.001, 0.001)
    assert taken(schedule, 1.0).batch.queue.model == "other"


def test_a_suspect_waits_while_another_is_loaded_until_that_is_forgotten() -> None:
    schedule = FairQueue(4)
    for name in ("here", "comes"):
        schedule.add(name, 1, Options()).suspect = 100.0
    here, comes = schedule.queues["here", 1], schedule.queues["comes", 1]
    here.present = comes.loading = True
    schedule.put(here, Request(KIND, 1, 0.0))
    assert schedule.take(99.0) == (None, [])
    assert taken(schedule, 101.0).batch.queue is here


def taken(schedule: FairQueue, now: float) -> RunningBatch:
    run, _ = schedule.take(now)
    assert run is not None
    return run
