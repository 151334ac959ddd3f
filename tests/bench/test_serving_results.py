"""Promises of the serving benchmarks' tables, from made-up samples: nothing is measured here."""

import dataclasses
import json

import pytest

from bench import callers, connect, fairness, paging, reload, report, serving

MiB = 2**20


def heard(rate: float, p99: float = 0.0123, refused: int = 0, late: int = 0) -> callers.Heard:
    """A window of two seconds."""
    return callers.Heard(2.0, int(rate * 2), refused, late, p99 / 2, p99, p99 * 2, 0.001)


def stay(way: serving.Way, rate: float, p99: float) -> serving.Stay:
    """All that this server can be asked."""
    kinds = [kind for kind in serving.KINDS if getattr(way, kind.split()[0]) is not None]
    if way.key == "sublet":
        kinds += [f"{serving.V2} rest 1", f"{serving.V2} grpc 1"]
    return serving.Stay({kind: heard(rate, p99) for kind in kinds}, 1234 * MiB, 25.4)


RATES = {"sublet": (12345.0, 0.0123), "pytriton": (1440.0, 0.123)}
ROUND = {way.key: stay(way, *RATES.get(way.key, (4000.0, 0.01))) for way in serving.WAYS}
FIGURES = {connect.SMALL: 12345.0, connect.LARGE: 1234.5}
CALLS = {way: connect.Calls(FIGURES, FIGURES, FIGURES, 1157 * MiB) for way in connect.TITLES}
FAIR = fairness.Round(
    heard(400),
    heard(380, 0.05),
    heard(360, 0.055, refused=1400),
    heard(350, 0.06, refused=7300),
    {fairness.ALONE: heard(10, 0.01), fairness.BESIDE: heard(10, 0.019)},
)
REPLAYS = {
    paging.PAGED: paging.Replay(1800, 0, 0.05, 0.3, 900, 8, 470 * MiB),
    paging.ALL: paging.Replay(1800, 0, 0.005, 0.02, 0, 50, 1200 * MiB),
    paging.EACH: paging.Replay(40, 0, 0.06, 0.08, 40, 1, 400 * MiB),
}
RESULTS = (
    serving.result([ROUND, ROUND], [42_000.0, 41_000.0]),
    connect.result([CALLS]),
    fairness.result([FAIR]),
    paging.result(REPLAYS, 50, 8, 20.0),
    reload.result(200, [0.1] * 200, [90 * MiB] * 41, heard(1000)),
)
BY_NAME = {result.name: result for result in RESULTS}


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result.name)
def test_everything_printed_fits_a_terminal(result: report.Result) -> None:
    """Tables, notes and bars."""
    lines = result.render().splitlines()
    assert max(map(len, lines)) <= report.WIDTH
    assert result.bars


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result.name)
def test_what_is_written_is_json_without_answers_of_servers(result: report.Result) -> None:
    """A sample answer is for checking, not for keeping."""
    assert '"sample"' not in json.dumps(result.document({}, quick=True))


def test_a_peer_that_cannot_be_had_leaves_no_row_and_no_bar() -> None:
    """The others are still compared, and the reason is told."""
    without = {key: one for key, one in ROUND.items() if key != "pytriton"}
    result = serving.result([without], [42_000.0], ("PyTriton: it cannot be installed",))
    assert not [bar for bar in result.bars if "PyTriton" in bar.name]
    assert [bar for bar in result.bars if "bare" in bar.name]
    assert "it cannot be installed" in result.render()


def test_serving_is_judged_round_by_round_where_both_were_measured() -> None:
    """A round in which the peer failed has no say."""
    slow = ROUND | {"sublet": stay(serving.WAYS[0], 144.0, 1.0)}
    del slow["pytriton"]
    bars = {bar.name: bar for bar in serving.result([ROUND, slow], []).bars}
    assert bars["REST, 1 model: of PyTriton"].value == pytest.approx(12345 / 1440, rel=1e-3)
    assert bars["REST, 1 model: p99, of PyTriton's"].met


def test_requests_without_an_answer_count_as_failed() -> None:
    """Not only those that were refused."""
    result = reload.result(200, [0.1], [90 * MiB] * 41, heard(1000, refused=1, late=2))
    assert result.bars[0].value == 3
    assert result.bars[0].met is False


def test_what_the_first_reloads_take_once_is_no_growth() -> None:
    """But what each of them takes is."""
    assert reload.growth_of([80] + [100] * 40) == 0
    assert reload.growth_of(range(100, 141)) > 0.2


def test_the_other_models_refusals_are_counted() -> None:
    """Alone or beside the flood: it asked for little."""
    lost = {**FAIR.other, fairness.BESIDE: heard(9, 0.01, refused=2)}
    bars = {bar.name: bar for bar in fairness.result([dataclasses.replace(FAIR, other=lost)]).bars}
    assert bars["flood of 10x: the other's refusals"].value == 2


def test_popularity_follows_zipf_and_the_trace_is_always_the_same() -> None:
    """The first model is asked for twice as often as the second, and so on."""
    order = paging.trace(50, 20_000)
    assert order == paging.trace(50, 20_000)
    counts = [order.count(model) for model in range(3)]
    assert counts[0] == pytest.approx(counts[1] * 2, rel=0.1)
    assert counts[0] == pytest.approx(counts[2] * 3, rel=0.1)
