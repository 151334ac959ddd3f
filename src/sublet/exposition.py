"""The text that Prometheus reads, family by family."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from msgspec import Struct


class Spread(Struct):
    """Amounts, counted by size: one more bucket than there are bounds."""

    buckets: list[int]
    total: float = 0.0

    @classmethod
    def of(cls, bounds: Sequence[float]) -> "Spread":
        return cls([0] * (len(bounds) + 1))

    def add(self, bounds: Sequence[float], amount: float) -> None:
        self.buckets[bisect_left(bounds, amount)] += 1
        self.total += amount


def scalars(name: str, kind: str, amounts: Mapping[str, float], text: str = "") -> list[str]:
    """The lines of a counter or a gauge, by labels; none if there are no amounts."""
    if not amounts:
        return []
    samples = (f"{name}{_braced(of)} {_number(amount)}" for of, amount in amounts.items())
    return [*_head(name, kind, text), *samples]


def histogram(
    name: str, bounds: Sequence[float], spreads: Mapping[str, Spread], text: str = ""
) -> list[str]:
    """The lines of a histogram, by labels; none if there are no spreads."""
    if not spreads:
        return []
    lines = _head(name, "histogram", text)
    limits = [*(f"{bound:g}" for bound in bounds), "+Inf"]
    for of, spread in spreads.items():
        below, comma = 0, "," if of else ""
        for limit, number in zip(limits, spread.buckets, strict=True):
            below += number
            lines.append(f'{name}_bucket{{{of}{comma}le="{limit}"}} {below}')
        lines.append(f"{name}_sum{_braced(of)} {_number(spread.total)}")
        lines.append(f"{name}_count{_braced(of)} {below}")
    return lines


def labels(**values: str) -> str:
    """Labels as they stand between the braces."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())


def _head(name: str, kind: str, text: str) -> list[str]:
    return [*([f"# HELP {name} {text}"] if text else []), f"# TYPE {name} {kind}"]


def _braced(of: str) -> str:
    return f"{{{of}}}" if of else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return f"{value:.17g}" if isinstance(value, float) else str(value)
