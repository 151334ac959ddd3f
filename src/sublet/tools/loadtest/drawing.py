"""The plot of a measurement, as an SVG: throughput, and below it latencies, by calls at once."""

import math
from collections.abc import Callable, Sequence

from sublet import svg
from sublet.tools.loadtest.figures import Figures
from sublet.tools.loadtest.tables import number, span

_WIDTH = 860
_LEFT, _RIGHT = 96, 70
_HEIGHT = 220.0
_ROOM = _WIDTH - _LEFT - _RIGHT
_RATE = "#2a9d5c"
_LATENCIES: dict[str, tuple[str, Callable[[Figures], float]]] = {
    "p50": ("#4f81bd", lambda one: one.p50),
    "p95": ("#d9a441", lambda one: one.p95),
    "p99": ("#b5651d", lambda one: one.p99),
}


def draw(figures: Sequence[Figures], title: str) -> str:
    parts = [svg.text(_LEFT, 30, title, size=14, weight="bold")]
    parts.append(svg.text(_LEFT, 62, "Requests per second, by concurrency", weight="bold"))
    top = 74.0
    parts += _panel(figures, top, max(one.rate for one in figures), number)
    parts.append(svg.curve(_points(figures, lambda one: one.rate, top), _RATE))
    top += _HEIGHT + 60
    parts.append(svg.text(_LEFT, top - 12, "Latency, by concurrency", weight="bold"))
    most = max(one.p99 for one in figures)
    parts += _panel(figures, top, most, span)
    for place, (name, (colour, value)) in enumerate(_LATENCIES.items()):
        parts.append(svg.curve(_points(figures, value, top, most), colour))
        parts.append(svg.text(_LEFT + 10, top + 18 + 15 * place, name, fill=colour))
    return svg.document(parts, _WIDTH, top + _HEIGHT + 40)


def _x(concurrency: int, figures: Sequence[Figures]) -> float:
    """Logarithmic: each doubling is equally far."""
    first, last = math.log2(figures[0].concurrency), math.log2(figures[-1].concurrency)
    share = (math.log2(concurrency) - first) / (last - first) if last > first else 0.5
    return _LEFT + _ROOM * share


def _points(
    figures: Sequence[Figures],
    value: Callable[[Figures], float],
    top: float,
    most: float | None = None,
) -> list[tuple[float, float]]:
    whole = most or max(map(value, figures))
    return [
        (_x(one.concurrency, figures), top + _HEIGHT * (1 - value(one) / whole)) for one in figures
    ]


def _panel(
    figures: Sequence[Figures], top: float, most: float, shown: Callable[[float], str]
) -> list[str]:
    parts = [svg.frame(_LEFT, top, _ROOM, _HEIGHT)]
    for share in (0.25, 0.5, 0.75, 1.0):
        at = top + _HEIGHT * (1 - share)
        parts.append(svg.text(_LEFT - 8, at + 4, shown(most * share), anchor="end", fill="#555"))
        parts.append(svg.rule(_LEFT, at, _LEFT + _ROOM, at))
    for one in figures:
        x = _x(one.concurrency, figures)
        parts.append(svg.rule(x, top, x, top + _HEIGHT))
        label = str(one.concurrency)
        parts.append(svg.text(x, top + _HEIGHT + 16, label, anchor="middle", fill="#555"))
    return parts
