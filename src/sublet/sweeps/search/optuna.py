"""A search that an Optuna study leads: it is asked for a batch of trials, and told their values."""

import importlib
from collections.abc import Sequence
from typing import Any

from sublet.errors import BadRequest
from sublet.sweeps.records import Mode, Trial, is_number
from sublet.sweeps.search.rung import Rung
from sublet.sweeps.space import Choice, Domain, RandInt, Space, Uniform


def is_optuna(given: object) -> bool:
    """Whether this is a study or a sampler of Optuna's."""
    return _is_study(given) or hasattr(given, "sample_relative")


def _is_study(given: object) -> bool:
    return hasattr(given, "ask") and hasattr(given, "tell")


def mode_of(given: Any) -> Mode | None:
    """The direction of a study; None for a sampler."""
    if not _is_study(given):
        return None
    return "max" if given.direction.name == "MAXIMIZE" else "min"


class Optuna:
    """Asks the study for `at_once` trials at a time, which are trained together.

    The study is told what has ended since. One that knows nothing of trials that are there, because
    the sweep was killed and goes on, gets them first.
    """

    name = "optuna"

    def __init__(
        self, given: Any, space: Space, epochs: int, mode: Mode, trials: int, at_once: int
    ) -> None:
        self._optuna = importlib.import_module("optuna")
        directions = {"min": "minimize", "max": "maximize"}
        if _is_study(given):
            if mode_of(given) != mode:
                raise BadRequest(
                    f"The study is to {given.direction.name.lower()}, and the mode is {mode!r}.",
                    f'Create it with direction="{directions[mode]}", or leave mode out.',
                )
            self._study = given
        else:
            self._study = self._optuna.create_study(sampler=given, direction=directions[mode])
        self._distributions = {
            name: self._distribution(name, domain) for name, domain in space.domains.items()
        }
        self._epochs = epochs
        self._trials = trials
        self._at_once = at_once
        self._asked: dict[int, Any] = {}
        """Trials of the study by their number here; those that were told are None."""

    @property
    def work(self) -> int:
        return self._trials * self._epochs

    def next(self, trials: Sequence[Trial]) -> Rung | None:
        for trial in trials:
            self._tell(trial)
        count = min(self._at_once, self._trials - len(trials))
        if count <= 0:
            return None
        asked = [self._study.ask(self._distributions) for _ in range(count)]
        self._asked |= {len(trials) + place: one for place, one in enumerate(asked)}
        return Rung(self._epochs, new=tuple(dict(one.params) for one in asked))

    def _tell(self, trial: Trial) -> None:
        states = self._optuna.trial.TrialState
        works = is_number(trial.value) and trial.state != "failed"
        if trial.number in self._asked:
            asked = self._asked[trial.number]
            if asked is not None:
                if works:
                    self._study.tell(asked, trial.value)
                else:
                    self._study.tell(asked, state=states.FAIL)
        else:
            self._study.add_trial(
                self._optuna.trial.create_trial(
                    params=trial.params,
                    distributions=self._distributions,
                    value=trial.value if works else None,
                    state=states.COMPLETE if works else states.FAIL,
                )
            )
        self._asked[trial.number] = None

    def _distribution(self, name: str, domain: Domain) -> Any:
        kinds = self._optuna.distributions
        match domain:
            case Uniform():
                return kinds.FloatDistribution(domain.low, domain.high, log=domain.log)
            case RandInt():
                return kinds.IntDistribution(domain.low, domain.high)
            case Choice(values=values):
                plain = (bool, int, float, str, type(None))
                if not all(isinstance(value, plain) for value in values):
                    raise BadRequest(
                        f"Optuna chooses numbers and texts, and {name} has other values.",
                        "Let the builder look them up by a name.",
                    )
                return kinds.CategoricalDistribution(values)
        raise BadRequest(f"{name}: Optuna knows no such parameter.")
