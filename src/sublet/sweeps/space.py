"""The space of a sweep: what each parameter may be; its grid, and samples of it. Pure."""

import itertools
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sublet.errors import BadRequest
from sublet.sweeps.records import Params

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_MOST = 100_000
"""Trials of a grid."""
_EXAMPLE = 'Write {"learning_rate": loguniform(1e-4, 1e-1), "units": [32, 64], "seed": range(4)}.'


class Domain(Protocol):
    """What one parameter may be."""

    @property
    def values(self) -> tuple[Any, ...] | None:
        """All of them; None if they are too many to try each."""

    def at(self, share: float) -> Any:
        """The value at this share of the way, from 0 to below 1, through the domain."""

    def plain(self) -> dict[str, Any]:
        """The domain as plain values, for journals and pages."""


@dataclass(frozen=True)
class Choice:
    """One of these values."""

    values: tuple[Any, ...]

    def at(self, share: float) -> Any:
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def plain(self) -> dict[str, Any]:
        return {"choice": [plain_value(value) for value in self.values]}


@dataclass(frozen=True)
class Uniform:
    """Any number from `low` to `high`; with `log`, evenly by its logarithm."""

    low: float
    high: float
    log: bool = False
    values: None = None

    def at(self, share: float) -> float:
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            value = math.exp(low + share * (high - low))
        else:
            value = self.low + share * (self.high - self.low)
        return min(max(value, self.low), self.high)

    def plain(self) -> dict[str, Any]:
        return {"loguniform" if self.log else "uniform": [self.low, self.high]}


@dataclass(frozen=True)
class RandInt:
    """Any integer from `low` to `high`, both included."""

    low: int
    high: int

    @property
    def values(self) -> tuple[int, ...] | None:
        return tuple(range(self.low, self.high + 1)) if self.high - self.low < _MOST else None

    def at(self, share: float) -> int:
        return min(self.low + int(share * (self.high - self.low + 1)), self.high)

    def plain(self) -> dict[str, Any]:
        return {"randint": [self.low, self.high]}


def uniform(low: float, high: float) -> Uniform:
    """Any number from `low` to `high`."""
    return Uniform(*_bounds("uniform", low, high))


def loguniform(low: float, high: float) -> Uniform:
    """Any number from `low` to `high`, as often below as above their geometric mean."""
    bounds = _bounds("loguniform", low, high)
    if not bounds[0] > 0:
        raise BadRequest(f"loguniform({low}, {high}): it begins above 0.", "Use uniform.")
    return Uniform(*bounds, log=True)


def randint(low: int, high: int) -> RandInt:
    """Any integer from `low` to `high`, both included."""
    for bound in (low, high):
        if isinstance(bound, bool) or not isinstance(bound, int):
            raise BadRequest(f"randint({low!r}, {high!r}): give integers.", "Or use uniform.")
    _bounds("randint", low, high)
    return RandInt(low, high)


def choice(*values: Any) -> Choice:
    """One of these values; a plain list says the same."""
    if len(values) == 1 and isinstance(values[0], list | tuple | range):
        values = tuple(values[0])
    if not values:
        raise BadRequest("choice() has no value.", "Give at least one.")
    return Choice(tuple(values))


def _bounds(kind: str, low: float, high: float) -> tuple[float, float]:
    try:
        bounds = float(low), float(high)
    except (TypeError, ValueError):
        raise BadRequest(f"{kind}({low!r}, {high!r}): give two numbers.") from None
    if not (math.isfinite(bounds[0]) and math.isfinite(bounds[1]) and bounds[0] < bounds[1]):
        raise BadRequest(f"{kind}({low}, {high}) is empty.", "The first number is the smaller one.")
    return bounds


class Space:
    """The parameters of a sweep, in their order, and what each may be."""

    def __init__(self, domains: Mapping[str, Domain]) -> None:
        self.domains = dict(domains)

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> "Space":
        """A space as users write it: lists, ranges, `loguniform` and its like, or single values."""
        if not isinstance(written, Mapping):
            raise BadRequest(f"The space is {type(written).__name__}, not a dict.", _EXAMPLE)
        if not written:
            raise BadRequest("The space is empty.", _EXAMPLE)
        return cls({_name(name): _domain(name, given) for name, given in written.items()})

    @property
    def size(self) -> int | None:
        """How many combinations there are; None if they cannot be counted."""
        sizes = [domain.values for domain in self.domains.values()]
        if any(values is None for values in sizes):
            return None
        return math.prod(len(values) for values in sizes if values is not None)

    def grid(self) -> Iterator[Params]:
        """Every combination; the last parameter changes first."""
        every: list[Sequence[Any]] = []
        for name, domain in self.domains.items():
            if domain.values is None:
                raise BadRequest(
                    f"{name} has no end of values: a grid cannot try them all.",
                    'Give a list, or search="random" and a number of trials.',
                )
            every.append(domain.values)
        if (size := math.prod(map(len, every))) > _MOST:
            raise BadRequest(
                f"The grid has {size} trials, more than {_MOST}.",
                'Give fewer values, or search="random" and a number of trials.',
            )
        for values in itertools.product(*every):
            yield dict(zip(self.domains, values, strict=True))

    def sample(self, draw: random.Random) -> Params:
        """One combination by chance."""
        return {name: domain.at(draw.random()) for name, domain in self.domains.items()}

    def samples(self, count: int, seed: int) -> list[Params]:
        """So many by chance, always the same ones for a seed, no combination twice; fewer if there
        are not so many."""
        size = self.size
        if size is not None and size <= count:
            return list(self.grid())
        found: dict[str, Params] = {}
        draw = random.Random(seed)
        while len(found) < count:
            one = self.sample(draw)
            found.setdefault(repr(one), one)
        return list(found.values())

    def plain(self) -> dict[str, Any]:
        """The space as plain values, for journals and pages."""
        return {name: domain.plain() for name, domain in self.domains.items()}


def plain_value(value: Any) -> Any:
    """A value of a parameter as JSON knows it; what JSON does not know, as Python shows it."""
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, list | tuple):
        return [plain_value(one) for one in value]
    if isinstance(value, dict):
        return {str(name): plain_value(one) for name, one in value.items()}
    if callable(item := getattr(value, "item", None)) and getattr(value, "ndim", 1) == 0:
        return plain_value(item())
    return getattr(value, "__name__", None) or repr(value)


def _name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadRequest(f"{name!r} cannot be the name of a parameter.", _EXAMPLE)
    return name


def _domain(name: str, given: Any) -> Domain:
    if isinstance(given, Choice | Uniform | RandInt):
        return given
    if isinstance(given, list | tuple | range | set | frozenset) or _is_array(given):
        values = tuple(sorted(given) if isinstance(given, set | frozenset) else given)
        if not values:
            raise BadRequest(f"{name} has no values.", "Give at least one, or leave it out.")
        return Choice(tuple(_scalar(value) for value in values))
    if isinstance(given, Iterator) or callable(given):
        raise BadRequest(
            f"{name} is {type(given).__name__}, which cannot be tried again.", "Give a list."
        )
    return Choice((given,))


def _is_array(given: Any) -> bool:
    return type(given).__module__ == "numpy" and getattr(given, "ndim", 0) == 1


def _scalar(value: Any) -> Any:
    """NumPy's numbers as Python's: they are shown, compared and written like those."""
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        return value.item()
    return value
