"""One model's queue: order, bounds, deadlines, and which requests make a batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.channel.codes import Code
from sublet.engine.model_options import Options
from sublet.engine.model_queue import ModelQueue
from sublet.engine.requests import Batch, BatchKind, Request

ROWS = BatchKind("rows")


def queue(**options: object) -> ModelQueue:
    one = ModelQueue("m", 1, Options.read(options))
    one.present = True
    return one


def request(rows: int = 1, at: float = 0.0, kind: BatchKind = ROWS, **more: float) -> Request:
    return Request(kind, rows, at, more.get("deadline", float("inf")), int(more.get("priority", 0)))


def taken(one: ModelQueue, now: float = 0.0) -> list[Request]:
    batch, _ = one.take(now)
    return [] if batch is None else [part.request for part in batch.parts]


def test_what_waits_together_runs_together_in_its_order() -> None:
    one = queue(max_batch_size=4)
    requests = [request(at=n) for n in range(6)]
    for each in requests:
        assert one.put(each) is None
    assert taken(one) == requests[:4]
    assert taken(one) == requests[4:]
    assert taken(one) == []


def test_a_request_is_not_torn_apart_to_fill_a_batch() -> None:
    one = queue(max_batch_size=4)
    first, second = request(3), request(2)
    one.put(first)
    one.put(second)
    assert taken(one) == [first]
    assert taken(one) == [second]


def large(rows: int, mib: int, kind: BatchKind) -> Request:
    return Request(kind, rows, 0.0, nbytes=mib << 20)


def test_a_request_is_split_so_that_its_pieces_fit_the_memory_beside_each_other() -> None:
    kind = BatchKind("tight")
    kind.even = True
    kind.need.note(1 << 20, 8 << 20, available=64 << 20)
    one = queue()
    one.put(large(100, 100, kind))
    batch, _ = one.take(0.0)
    assert batch is not None
    assert (batch.rows, batch.nbytes) == (2, 2 << 20)


def test_requests_that_would_not_fit_the_memory_together_do_not_share_a_batch() -> None:
    kind = BatchKind("tight")
    kind.need.note_short(8 << 20, 0.0)
    one = queue()
    requests = [large(1, 1, kind) for _ in range(2)]
    for each in requests:
        one.put(each)
    assert taken(one) == requests[:1]


def test_a_row_that_is_known_not_to_fit_the_memory_is_refused() -> None:
    kind = BatchKind("tight")
    kind.need.note_short(8 << 20, 0.0)
    one = queue()
    refused = one.put(large(2, 16, kind))
    assert refused is not None
    assert refused.code == Code.RESOURCE_EXHAUSTED
    assert one.put(large(2, 14, kind)) is None
    assert one.rows == 2


def test_higher_priorities_go_first_and_lower_ones_fill_the_batch() -> None:
    one = queue(max_batch_size=2)
    low, high, higher = request(), request(priority=1), request(priority=2)
    for each in (low, high, higher):
        one.put(each)
    assert taken(one) == [higher, high]
    assert taken(one) == [low]


def test_only_requests_of_one_kind_share_a_batch_and_the_oldest_decides_which() -> None:
    other = BatchKind("other")
    one = queue()
    requests = [request(at=0), request(at=1, kind=other), request(at=2)]
    for each in requests:
        one.put(each)
    assert taken(one) == [requests[0], requests[2]]
    assert taken(one) == [requests[1]]


def test_requests_that_must_be_alone_are() -> None:
    kind = BatchKind("state", lone=True)
    one = queue()
    requests = [request(at=n, kind=kind) for n in range(3)]
    for each in requests:
        one.put(each)
    assert [taken(one) for _ in requests] == [[each] for each in requests]


def test_a_model_with_state_runs_one_batch_at_a_time() -> None:
    one = queue()
    one.exclusive = True
    one.put(request())
    batch, _ = one.take(0.0)
    one.put(request())
    assert one.due(0.0) is None
    assert batch is not None
    one.finish(batch, 0.1, 0.1)
    assert one.due(0.0) is not None


class Bound:
    """What is asked of a signature."""

    def __init__(self, quick: bool) -> None:
        self.quick = quick


@pytest.mark.parametrize(
    ("quick", "seconds", "rows", "brief"),
    [
        (True, 0.0001, 2, True),
        (False, 0.0001, 2, False),
        (True, 0.01, 2, False),
        (True, 0.0001, 64, False),
    ],
)
def test_a_batch_is_brief_if_its_model_is_quick_and_was_so_of_late(
    quick: bool, seconds: float, rows: int, brief: bool
) -> None:
    kind = BatchKind("rows")
    kind.bound = Bound(quick)
    one = queue(max_batch_size=64)
    one.put(request(kind=kind))
    first, _ = one.take(0.0)
    assert first is not None
    assert not first.brief  # Nothing is known yet.
    one.finish(first, seconds, seconds)
    one.put(request(rows, kind=kind))
    second, _ = one.take(0.0)
    assert second is not None
    assert second.brief == brief


def test_a_full_queue_says_so_as_tensorflow_serving_does() -> None:
    one = queue(max_batch_size=2, max_enqueued_batches=3)
    for _ in range(6):
        assert one.put(request()) is None
    refused = one.put(request())
    assert refused is not None
    assert refused.code == Code.UNAVAILABLE
    assert refused.message == (
        "The batch scheduling queue to which this task was submitted is full; currently 3 batches "
        "enqueued and max_enqueued_batches is 3"
    )


def test_a_request_larger_than_the_whole_queue_has_room_in_an_empty_one() -> None:
    one = queue(max_batch_size=2, max_enqueued_batches=1)
    assert one.put(request(100)) is None
    assert one.put(request()) is not None


def test_a_request_that_must_be_alone_counts_as_one_batch_however_long_it_is() -> None:
    one = queue(max_batch_size=2, max_enqueued_batches=3)
    alone = BatchKind("alone")
    alone.alone = True
    requests = [request(1_000_000, kind=alone) for _ in range(4)]
    assert [one.put(each) is None for each in requests] == [True, True, True, False]
    assert taken(one) == requests[:1]
    assert one.give_up(requests[1])
    assert one.rows == 2
    assert taken(one) == requests[2:3]
    assert one.rows == 0


def test_large_requests_do_not_fill_a_queue_whose_owner_named_no_size() -> None:
    one = queue()
    kind = BatchKind("rows")
    kind.even = True
    requests = [request(20_000, kind=kind) for _ in range(3)]
    assert [one.put(each) for each in requests] == [None] * 3
    pieces: dict[Request, int] = dict.fromkeys(requests, 0)
    while one.due(0.0) is not None:
        batch, _ = one.take(0.0)
        assert batch is not None
        for part in batch.parts:
            pieces[part.request] += part.stop - part.start
    assert list(pieces.values()) == [20_000] * 3
    assert one.rows == 0


def test_a_large_request_is_split_once_its_kind_was_seen_to_have_rows() -> None:
    one = queue()
    kind = BatchKind("unknown")
    for even, first in ((False, 10_000), (True, 256)):
        kind.even = even
        one.put(request(10_000, kind=kind))
        batch, _ = one.take(0.0)
        assert batch is not None
        assert batch.rows == first


def test_more_may_wait_for_a_model_that_is_not_in_memory() -> None:
    one = queue(max_batch_size=1, max_enqueued_batches=2)
    one.present = False
    assert [one.put(request()) for _ in range(10)] == [None] * 10
    assert one.due(0.0) is None


def backlog(one: ModelQueue, seconds: float, now: float = 0.0) -> float:
    """Run full batches that each take so long, while more waits behind them; the time then."""
    for _ in range(8):
        for _ in range(3):
            one.put(request(64, at=now))
        taken(one, now)
        now += seconds
    for each in one.drain():
        each.done = True
    return now


@pytest.mark.parametrize("alone", [False, True])
def test_sixty_four_clients_with_large_requests_find_room_by_default(alone: bool) -> None:
    one = queue(alone=alone)
    now = backlog(one, 0.1)
    assert [one.put(request(64, at=now)) for _ in range(64)] == [None] * 64


@pytest.mark.parametrize(("deadline", "fits"), [(float("inf"), 30.0), (4.0, 2.0)])
def test_a_call_is_refused_if_it_would_wait_too_long_for_its_deadline(
    deadline: float, fits: float
) -> None:
    one = queue()
    now = backlog(one, 0.64)  # So a row takes 10 ms.
    rows = 0
    while (refused := one.put(request(10, at=now, deadline=now + deadline))) is None:
        rows += 10
    assert rows * 0.01 == pytest.approx(fits, abs=0.11)
    assert refused.code == Code.UNAVAILABLE
    assert f"and may for {fits:.2g} s" in str(refused)


def test_one_slow_batch_refuses_nobody() -> None:
    one = queue()
    one.put(request())
    taken(one, 0.0)
    one.put(request(at=1.0))
    taken(one, 20.0)  # The first one was compiled meanwhile.
    assert [one.put(request(64, at=20.0, deadline=50.0)) for _ in range(64)] == [None] * 64


def test_a_queue_that_does_not_move_refuses_before_anything_was_measured() -> None:
    one = queue()
    one.put(request(at=0.0))
    taken(one, 0.0)
    assert one.put(request(at=1.0)) is None
    assert one.put(request(at=30.0)) is None
    assert one.put(request(at=32.0)) is not None


def test_at_five_times_its_capacity_a_model_does_what_it_can_and_nobody_waits_in_vain() -> None:
    """A batch of up to 64 rows takes 100 ms; 3,200 calls come in each second, each for 2 s."""
    one = queue()
    start = now = backlog(one, 0.1)
    came = answered = expired = refused = 0
    while now < start + 20.0:
        now += 0.1
        while (arrived := start + came / 3200) < now:
            came += 1
            refused += one.put(request(at=arrived, deadline=arrived + 2.0)) is not None
        batch, late = one.take(now)
        assert batch is not None
        assert all(part.request.deadline > now + 0.1 for part in batch.parts)
        answered, expired = answered + batch.rows, expired + len(late)
        assert one.rows <= 64 * 20
    assert expired == 0
    assert answered >= 0.98 * 640 * 20
    assert refused >= 0.75 * came


def test_a_batch_that_is_not_full_waits_for_its_time() -> None:
    one = queue(max_batch_size=2, batch_timeout_micros=10_000)
    one.put(request(at=1.0))
    assert one.due(1.0) == pytest.approx(1.01)
    one.put(request(at=1.005))
    assert one.due(1.005) == 1.0


def test_a_batch_does_not_wait_until_its_first_request_would_be_late() -> None:
    one = queue(max_batch_size=2, batch_timeout_micros=10_000_000)
    one.seconds = 0.1
    one.put(request(at=0.0, deadline=1.0))
    assert one.due(0.0) == pytest.approx(0.8)


def test_requests_whose_time_has_passed_do_not_run() -> None:
    one = queue()
    late, fine = request(deadline=1.0), request(deadline=3.0)
    one.put(late)
    one.put(fine)
    batch, expired = one.take(2.0)
    assert batch is not None
    assert [part.request for part in batch.parts] == [fine]
    assert expired == [late]
    assert one.rows == 0


def test_a_large_request_is_taken_in_pieces_and_others_go_in_between_batches() -> None:
    one = queue(max_batch_size=4)
    large = request(10)
    one.put(large)
    pieces = []
    while (batch := one.take(0.0)[0]) is not None:
        pieces += [(part.start, part.stop) for part in batch.parts]
    assert pieces == [(0, 4), (4, 8), (8, 10)]


def test_large_inputs_are_not_copied_into_one_batch() -> None:
    one = queue()
    requests = [Request(ROWS, 1, 0.0, nbytes=3 << 20) for _ in range(2)]
    for each in requests:
        one.put(each)
    assert taken(one) == requests[:1]


def test_a_batch_that_is_put_back_is_as_if_never_taken() -> None:
    one = queue(max_batch_size=4)
    requests = [request(at=n) for n in range(6)]
    for each in requests:
        one.put(each)
    batch, _ = one.take(0.0)
    assert batch is not None
    one.put_back(batch)
    assert (one.rows, one.running) == (6, 0)
    assert taken(one) == requests[:4]
    large = queue(max_batch_size=4)
    large.put(request(10))
    large.take(0.0)
    batch, _ = large.take(0.0)
    assert batch is not None
    large.put_back(batch)
    again, _ = large.take(0.0)
    assert again == batch


def test_batches_shrink_when_a_target_is_missed_and_grow_again_when_there_is_room() -> None:
    one = queue(max_batch_size=32, latency_target_ms=10)

    def after(rows: int, oldest: float) -> int:
        one.put(request(rows))
        batch, _ = one.take(0.0)
        assert batch is not None
        one.finish(batch, oldest, oldest)
        return one.limit

    assert after(32, 0.020) == 24
    assert after(24, 0.020) == 18
    assert after(18, 0.005) == 19
    assert after(3, 0.005) == 19
    assert after(1, 0.5) == 1


requests = st.lists(
    st.tuples(
        st.integers(0, 12),  # rows
        st.integers(-1, 2),  # priority
        st.integers(0, 2),  # kind
        st.sampled_from([0.5, 5.0, float("inf")]),  # deadline
    ),
    max_size=40,
)


@given(requests, st.integers(1, 8), st.integers(0, 100), st.booleans())
def test_every_request_runs_once_expires_or_was_given_up(
    drawn: list[tuple[int, int, int, float]], largest: int, cancel: int, back: bool
) -> None:
    kinds = [BatchKind("a"), BatchKind("b"), BatchKind("c", lone=True)]
    one = queue(max_batch_size=largest, max_enqueued_batches=1000)
    put = []
    for at, (rows, priority, kind, deadline) in enumerate(drawn):
        each = Request(kinds[kind], rows, float(at) / 100, deadline, priority)
        assert one.put(each) is None
        put.append(each)
    given_up = put[cancel : cancel + 1]
    for each in given_up:
        assert one.give_up(each)
        assert not one.give_up(each)
    ran: dict[Request, list[tuple[int, int]]] = {}
    expired: list[Request] = []
    while one.rows or one.due(1.0) is not None:
        batch, late = one.take(1.0)
        expired += late
        if batch is None:
            continue
        if back:
            one.put_back(batch)
            batch, late = one.take(1.0)
            assert not late
            assert batch is not None
        check(batch, largest)
        for part in batch.parts:
            ran.setdefault(part.request, []).append((part.start, part.stop))
        one.finish(batch, 0.1, 0.1)
    assert {id(each) for each in put} == {id(each) for each in [*ran, *expired, *given_up]}
    assert len(ran) + len(expired) + len(given_up) == len(put)
    assert all(each.deadline <= 1.0 for each in expired)
    for each, pieces in ran.items():
        assert each.deadline > 1.0
        covered = [row for start, stop in pieces for row in range(start, stop)]
        assert covered == list(range(each.rows))
    assert one.rows == one.running == 0


def check(batch: Batch, largest: int) -> None:
    """One kind, not too large, alone where it must be."""
    assert {part.request.kind for part in batch.parts} == {batch.kind}
    assert batch.rows == sum(part.stop - part.start for part in batch.parts)
    if batch.kind.alone:
        assert len(batch.parts) == 1
    else:
        assert batch.rows <= largest
    order = [(-part.request.priority, part.request.arrived) for part in batch.parts]
    assert order == sorted(order)
