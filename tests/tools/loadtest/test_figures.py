"""What windows become, and when they are enough."""

import pytest

from sublet.tools.loadtest.figures import Call, Figures, Window, chosen, figures, quantile, settled
from sublet.tools.loadtest.tables import advice


def window(rate: float, latency: float = 0.01, count: int = 100) -> Window:
    """So many answers in a second, all alike."""
    return Window(count / rate, [Call(latency)] * count)


def test_a_quantile_is_a_value_that_was_measured_and_not_exceeded_by_that_share() -> None:
    ordered = [float(n) for n in range(1, 101)]
    assert [quantile(ordered, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert quantile([7.0], 0.99) == 7.0


def test_a_step_is_settled_when_three_windows_after_the_first_agree() -> None:
    assert settled([window(10), window(100), window(102), window(98)])
    assert not settled([window(100), window(100), window(100)])
    assert not settled([window(10), window(100), window(112), window(100)])


def test_equal_throughput_is_not_enough_if_the_p95_still_moves() -> None:
    slower = [window(100), window(100), window(100), window(100, latency=0.02)]
    assert not settled(slower)


def test_windows_before_the_last_three_do_not_count_once_those_agree() -> None:
    windows = [window(10), window(50), *[window(100)] * 3]
    assert chosen(windows) == (windows[-3:], True)


def test_without_agreement_all_but_the_first_window_count_and_that_is_said() -> None:
    windows = [window(10), window(100), window(200)]
    assert chosen(windows) == (windows[1:], False)
    assert chosen(windows[:1]) == (windows[:1], False)


def test_rates_are_over_all_windows_and_rows_count_as_many_times() -> None:
    answer = figures(4, 3, [window(100), window(50)])
    assert answer.requests == 200
    assert answer.rate == pytest.approx(200 / 3)
    assert answer.rows == pytest.approx(200)


def test_the_mean_batch_is_that_of_batches_not_of_calls() -> None:
    """One batch of four and four of one are 5 batches with 8 rows."""
    calls = [Call(1, batch=4)] * 4 + [Call(1, batch=1)] * 4
    assert figures(4, 1, [Window(1.0, calls)]).batch == pytest.approx(8 / 5)


def test_a_way_that_does_not_tell_queue_and_compute_leaves_them_open() -> None:
    answer = figures(1, 1, [window(10)])
    assert (answer.queued, answer.computed, answer.batch, answer.rest) == (None, None, None, None)
    assert any("does not tell" in line for line in advice([answer]))


def steps(*rates: float, queued: float, computed: float) -> list[Figures]:
    mean = 0.01
    calls = [Call(mean, queued * mean, computed * mean, 8)] * 100
    return [figures(2**step, 1, [Window(100 / rate, calls)]) for step, rate in enumerate(rates)]


@pytest.mark.parametrize(
    ("queued", "computed", "word"),
    [(0.7, 0.2, "Queue: "), (0.1, 0.8, "Compute: "), (0, 0, "The way: ")],
)
def test_what_limits_is_where_most_of_the_time_goes(
    queued: float, computed: float, word: str
) -> None:
    answer = advice(steps(10, 20, queued=queued, computed=computed))
    assert [line for line in answer if line.startswith(word)]


def test_throughput_that_still_grows_asks_for_more_and_else_the_knee_is_named() -> None:
    grows = advice(steps(10, 20, 40, queued=0, computed=1))
    assert grows[0] == "Throughput still grows at concurrency 4: try --concurrency 4:32."
    flat = advice(steps(10, 95, 100, 98, queued=0, computed=1))
    assert flat[0] == "From concurrency 2 on, throughput is within 10 % of its maximum."


def test_calls_that_are_split_are_not_judged_by_their_last_piece() -> None:
    answer = figures(4, 1000, [Window(1.0, [Call(1.0, 0.1, 0.1, 250)] * 20)])
    assert "split into batches of 250 rows" in advice([answer])[0]
