"""The search for a setting and the comparison with the defaults, on made-up models."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from sublet.errors import BadRequest
from sublet.serving.control.config_files import read_batching
from sublet.tools.loadtest import setting as settings
from sublet.tools.loadtest.figures import Figures
from sublet.tools.loadtest.search import Goal, Search, Trial
from sublet.tools.loadtest.setting import Setting
from sublet.tools.loadtest.trials import judge


def figures(rate: float, p99: float = 0.01) -> Figures:
    return Figures(32, 1000, 0, 1.0, True, rate, rate, p99 / 2, p99 / 2, p99, p99, 0, 0, 1)


def found(
    rate: Callable[[Setting], float],
    p99: Callable[[Setting], float] = lambda setting: 0.01,
    target: float | None = None,
    at_once: int = 32,
) -> tuple[Setting, list[Trial]]:
    async def measure(setting: Setting) -> Figures:
        return figures(rate(setting), p99(setting))

    search = Search(measure, Goal(target), at_once)
    return asyncio.run(search.run()), search.trials


def test_the_defaults_stay_where_nothing_is_better() -> None:
    best, trials = found(lambda setting: 100.0)
    assert best == Setting()
    assert trials[0].setting == Setting()


def test_the_best_batch_size_is_found_on_the_way_down() -> None:
    best, _ = found(lambda setting: 100 - abs(setting.largest - 8))
    assert best.largest == 8


def test_larger_batches_than_the_default_are_tried_when_so_many_rows_can_wait() -> None:
    best, _ = found(lambda setting: setting.largest, at_once=400)
    assert best.largest == 400


def test_a_wait_is_found_that_fills_batches() -> None:
    best, _ = found(lambda setting: 200 if setting.micros in (500, 2000) else 100)
    assert best.micros == 500


def test_a_wait_that_is_half_of_the_target_is_not_tried() -> None:
    _, trials = found(lambda setting: 100 + setting.micros, target=0.001)
    assert max(trial.setting.micros for trial in trials) == 500


def test_a_target_goes_before_throughput() -> None:
    best, _ = found(
        lambda setting: setting.largest, lambda setting: setting.largest / 1000, target=0.01
    )
    assert best.largest == 8


def test_nothing_is_tried_twice_and_not_much_is() -> None:
    _, trials = found(lambda setting: 100 + setting.micros / 1000 + setting.largest)
    tried = [trial.setting for trial in trials]
    assert len(set(tried)) == len(tried) <= 16


def test_a_machine_that_gets_slower_all_the_time_does_not_make_the_first_look_best() -> None:
    slowness = itertools.count(1)
    best, _ = found(
        lambda setting: (200 if setting.largest == 16 else 100) * 0.99 ** next(slowness)
    )
    assert best.largest == 16


def test_a_difference_within_noise_is_not_suggested() -> None:
    pairs = [(figures(100), figures(rate)) for rate in (110, 95, 108, 97, 112, 92)]
    verdict = judge(pairs, Goal())
    assert not verdict.suggested
    assert "within noise" in verdict.reason


def test_a_drift_of_both_does_not_hide_a_real_gain() -> None:
    pairs = [(figures(rate), figures(rate * 1.1)) for rate in (100, 90, 80, 70, 60, 50)]
    verdict = judge(pairs, Goal())
    assert verdict.suggested
    assert verdict.rate.gain == pytest.approx(0.1)


def test_a_gain_that_is_sure_but_tiny_is_not_suggested() -> None:
    assert not judge([(figures(1000), figures(1005))] * 6, Goal()).suggested


def test_a_setting_that_is_surely_worse_is_not_suggested() -> None:
    assert not judge([(figures(100), figures(80))] * 6, Goal()).suggested


def test_one_pair_proves_nothing() -> None:
    assert not judge([(figures(100), figures(200))], Goal()).suggested


def test_a_setting_that_meets_a_target_which_the_defaults_miss_is_suggested() -> None:
    pairs = [(figures(100, 0.03), figures(90, 0.015))] * 6
    assert judge(pairs, Goal(0.02)).suggested
    assert not judge(pairs, Goal(0.01)).suggested
    assert not judge(pairs, Goal()).suggested


def test_a_setting_is_written_as_servers_read_it(tmp_path: Path) -> None:
    chosen = Setting(largest=12, micros=500, padded=True)
    path = tmp_path / settings.FILE
    settings.write(path, chosen.text(["Measured."]), force=False)
    assert read_batching(path.read_text()) == {
        "max_batch_size": 12,
        "batch_timeout_micros": 500,
        "allowed_batch_sizes": [1, 2, 4, 8, 12],
    }
    assert [one.name for one in tmp_path.iterdir()] == [settings.FILE]


def test_a_file_is_never_replaced_unless_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "own.config"
    path.write_text("mine")
    with pytest.raises(BadRequest, match=r"is there already. Name another one with --output"):
        settings.write(path, "theirs", force=False)
    assert path.read_text() == "mine"
    settings.write(path, "theirs", force=True)
    assert path.read_text() == "theirs"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_place_that_cannot_be_written_to_is_refused_before(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="is no directory"):
        settings.check(tmp_path / "missing" / "file", force=False)
    with pytest.raises(BadRequest, match="is a directory"):
        settings.check(tmp_path, force=True)
