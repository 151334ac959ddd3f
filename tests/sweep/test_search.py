"""Searches, led through whole sweeps without a model: what a trial is worth is a function."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from sublet.errors import BadRequest
from sublet.sweeps.records import Mode, Params, Trial, is_number
from sublet.sweeps.search.choose import choose, halving, pbt
from sublet.sweeps.search.rung import Search
from sublet.sweeps.space import Space, loguniform, uniform

Worth = Callable[[Params, int], float]


class Played:
    """A sweep whose trials have a value at once. `work` counts their epochs."""

    def __init__(self, search: Search, worth: Worth, epochs: int) -> None:
        self.trials: list[Trial] = []
        self.work = 0
        self.rungs: list[tuple[int, ...]] = []
        while (rung := search.next(tuple(self.trials))) is not None:
            assert search.next(tuple(self.trials)) == rung  # It decides by the trials alone.
            for trial in self.trials:
                if not trial.over and trial.number not in rung.go_on:
                    self._put(structs.replace(trial, state="pruned"))
            for copy in rung.copies:
                assert {copy.source, copy.target} <= set(rung.go_on)
                self._put(structs.replace(self.trials[copy.target], params=copy.params))
            self.trials += [
                Trial(len(self.trials) + place, params) for place, params in enumerate(rung.new)
            ]
            chosen = [one.number for one in self.trials if not one.over]
            self.rungs.append(tuple(chosen))
            for number in chosen:
                self._train(number, rung.until, worth, epochs)

    def _train(self, number: int, until: int, worth: Worth, epochs: int) -> None:
        trial = self.trials[number]
        assert trial.epochs < until <= epochs
        self.work += until - trial.epochs
        state = "done" if until == epochs else "running"
        value = worth(trial.params, until)
        self._put(structs.replace(trial, epochs=until, value=value, state=state))

    def _put(self, trial: Trial) -> None:
        self.trials[trial.number] = trial


def ranked(params: Params, epoch: int) -> float:
    """A value by which the order of trials never changes."""
    return float(params["a"]) + 1 / epoch


@pytest.mark.parametrize("mode", ["min", "max"])
@given(st.integers(1, 80), st.integers(1, 40), st.integers(2, 5))
def test_halving_finds_the_best_trial_with_less_work(
    mode: Mode, count: int, epochs: int, eta: int
) -> None:
    space = Space.read({"a": range(count)})
    search = choose(halving(eta), space, epochs, mode, None, 0)
    played = Played(search, ranked, epochs)
    finished = [trial for trial in played.trials if trial.state == "done"]
    best = 0 if mode == "min" else count - 1
    assert best in [trial.params["a"] for trial in finished]
    assert all(trial.over for trial in played.trials)
    assert played.work <= count * epochs
    assert played.work == search.work
    sizes = [len(rung) for rung in played.rungs]
    assert sizes == sorted(sizes, reverse=True)


def test_halving_drops_trials_that_diverged_first() -> None:
    space = Space.read({"a": range(9)})
    played = Played(
        choose("halving", space, 9, "min", None, 0),
        lambda params, epoch: math.nan if params["a"] < 8 else 5.0,
        9,
    )
    assert [trial.params["a"] for trial in played.trials if trial.state == "done"] == [8]


@given(st.integers(2, 24), st.integers(2, 12), st.integers(1, 4), st.integers(0, 9))
def test_a_population_keeps_its_size_and_its_parameters_in_the_space(
    count: int, epochs: int, every: int, seed: int
) -> None:
    space = Space.read(
        {"a": uniform(0, 1), "rate": loguniform(1e-4, 1), "k": [1, 2, 4], "seed": range(99)}
    )
    search = choose(pbt(every), space, epochs, "min", count, seed)
    played = Played(search, ranked, epochs)
    assert len(played.trials) == count
    assert all(trial.state == "done" for trial in played.trials)
    for trial in played.trials:
        assert 0 <= trial.params["a"] <= 1
        assert 1e-4 <= trial.params["rate"] <= 1
        assert trial.params["k"] in (1, 2, 4)


def test_a_population_ends_better_than_it_began() -> None:
    space = Space.read({"a": uniform(0, 1)})
    search = choose(pbt(1), space, 40, "min", 12, 3)
    first = search.next(())
    assert first is not None
    played = Played(search, ranked, 40)
    began = sorted(params["a"] for params in first.new)
    ended = sorted(trial.params["a"] for trial in played.trials)
    assert ended[len(ended) // 2] < began[len(began) // 2]


def test_an_optuna_sampler_is_asked_in_batches_and_told_what_came() -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = Space.read({"a": uniform(0, 1), "k": ["x", "y"]})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    search = choose(study, space, 3, "min", 20, 0)
    trials: list[Trial] = []
    batches = []
    while (rung := search.next(tuple(trials))) is not None:
        batches.append(len(rung.new))
        trials += [
            Trial(len(trials) + place, params, "done", params["a"] if place else math.nan, 3)
            for place, params in enumerate(rung.new)
        ]
    assert batches == [8, 8, 4]
    states = [trial.state.name for trial in study.trials]
    assert (states.count("COMPLETE"), states.count("FAIL")) == (17, 3)
    assert study.best_value == min(one.params["a"] for one in trials if is_number(one.value))
    # A study that starts anew is told what an earlier run has found.
    again = optuna.create_study()
    assert choose(again, space, 3, "min", 20, 0).next(tuple(trials)) is None
    assert len(again.trials) == 20


@pytest.mark.parametrize(
    ("search", "trials", "said"),
    [
        ("bayes", None, "unknown"),
        ("random", None, "how many trials"),
        ("grid", 2, "The grid has 4 trials"),
        ("grid", 0, "at least one"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(
    search: str, trials: int | None, said: str
) -> None:
    with pytest.raises(BadRequest, match=said):
        choose(search, Space.read({"a": range(4)}), 3, "min", trials, 0)
