"""Makes the search that a user names."""

from dataclasses import dataclass
from typing import Any

from sublet.errors import BadRequest
from sublet.sweeps.records import Mode
from sublet.sweeps.search import optuna
from sublet.sweeps.search.fixed import Fixed
from sublet.sweeps.search.halving import Halving
from sublet.sweeps.search.population import Population
from sublet.sweeps.search.rung import Search
from sublet.sweeps.space import Space

NAMES = ("grid", "random", "halving", "pbt")
_FEW = 16
"""Trials of a population, if nobody says how many."""

_HIGHER = ("acc", "auc", "f1", "fmeasure", "precision", "recall", "iou", "r2", "score", "dice")
"""Parts of the names of metrics of which more is better."""


def mode_of(metric: str) -> Mode:
    """Whether less or more of a metric is better, by its name."""
    return "max" if any(part in metric.lower() for part in _HIGHER) else "min"


@dataclass(frozen=True)
class HalvingOptions:
    """`halving(...)` before it is known what is searched."""

    eta: int = 3
    first: int = 1


@dataclass(frozen=True)
class PopulationOptions:
    """`pbt(...)` before it is known what is searched."""

    every: int | None = None
    share: float = 0.25


def halving(eta: int = 3, first: int = 1) -> HalvingOptions:
    """Successive halving: one of `eta` trials survives each rung, the first of which takes `first`
    epochs; each later one ends at `eta` times as many."""
    if eta < 2 or first < 1:
        raise BadRequest(
            f"halving(eta={eta}, first={first}).", "eta is at least 2, first at least 1."
        )
    return HalvingOptions(eta, first)


def pbt(every: int | None = None, share: float = 0.25) -> PopulationOptions:
    """Population based training: every so many epochs (default: a tenth of them) the worst `share`
    of the trials take over weights of the best."""
    if (every is not None and every < 1) or not 0 < share <= 0.5:
        raise BadRequest(f"pbt(every={every}, share={share}).", "share is above 0, at most 0.5.")
    return PopulationOptions(every, share)


def choose(
    given: Any, space: Space, epochs: int, mode: Mode, trials: int | None, seed: int
) -> Search:
    """The search that was asked for, by its name or with its options."""
    if trials is not None and trials < 1:
        raise BadRequest(f"trials={trials}: at least one.", "Leave it out for the whole grid.")
    if given == "grid":
        every = tuple(space.grid())
        if trials is not None and trials < len(every):
            raise BadRequest(
                f"The grid has {len(every)} trials, and trials={trials}.",
                'Leave trials out, or use search="random".',
            )
        return Fixed("grid", every, epochs)
    if given == "random":
        return Fixed("random", _samples(space, trials, seed, given), epochs)
    if given == "halving" or isinstance(given, HalvingOptions):
        options = HalvingOptions() if given == "halving" else given
        params = _samples(space, trials, seed, "halving")
        return Halving(params, epochs, mode, options.eta, options.first)
    if given == "pbt" or isinstance(given, PopulationOptions):
        asked = PopulationOptions() if given == "pbt" else given
        params = _samples(space, trials or _FEW, seed, "pbt")
        every_so = asked.every or max(1, epochs // 10)
        return Population(params, space, epochs, mode, seed, every_so, asked.share)
    if optuna.is_optuna(given):
        if trials is None:
            raise BadRequest("A study does not end by itself.", "Say how many trials: trials=50.")
        return optuna.Optuna(given, space, epochs, mode, trials, max(8, trials // 4))
    raise BadRequest(
        f"search={given!r} is unknown.",
        f"Write {', '.join(NAMES)}, or give an Optuna study or sampler.",
    )


def _samples(
    space: Space, trials: int | None, seed: int, search: str
) -> tuple[dict[str, Any], ...]:
    """All of the space if it can be counted and no number is given; else so many by chance."""
    if trials is None:
        if space.size is None or search == "random":
            raise BadRequest(
                f'search="{search}" needs to know how many trials.', "Such as trials=50."
            )
        return tuple(space.grid())
    return tuple(space.samples(trials, seed))
