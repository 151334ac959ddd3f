"""The plot of a comparison, as an SVG that needs nothing to be drawn with.

Above: the mean completion time of each policy, for each assumption about contention. Below: how
many jobs had ended how long after their submission.
"""

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from sublet import svg
from sublet.tools.replay.comparison import ASSUMED, SAID, Figures

_WIDTH = 860
_LEFT, _RIGHT = 96, 70
_ROW, _GAP = 17, 12
_COLOURS = {
    "one": "#9a9a9a",
    "slots2": "#d9a441",
    "slots4": "#b5651d",
    "best": "#4f81bd",
    "greedy": "#8e6bbf",
    "ours": "#2a9d5c",
}
_TIMES = ((1, "1 s"), (60, "1 min"), (3600, "1 h"), (86400, "1 d"), (8640000, "100 d"))


def draw(figures: Sequence[Figures], title: str) -> str:
    """The plot as SVG."""
    parts: list[str] = []
    y = 30.0
    parts.append(svg.text(_LEFT, y, title, size=14, weight="bold"))
    y += 26
    parts.append(svg.text(_LEFT, y, "Mean completion time (shorter is better)", weight="bold"))
    y += 8
    longest = max(one.mean for one in figures)
    for assumed in dict.fromkeys(one.contention for one in figures):
        y += _GAP + 8
        parts.append(svg.text(_LEFT, y, ASSUMED[assumed], fill="#555"))
        y += 6
        for one in figures:
            if one.contention == assumed:
                parts += _bar(one, y, longest)
                y += _ROW
    shown = "drawn" if any(one.contention == "drawn" for one in figures) else figures[0].contention
    y += 40
    parts.append(
        svg.text(_LEFT, y, f"Share of jobs done, by time since submission ({shown})", weight="bold")
    )
    curves, height = _curves([one for one in figures if one.contention == shown], y + 14)
    parts += curves
    y += height + 40
    return svg.document(parts, _WIDTH, y)


def short(seconds: float) -> str:
    """A span in at most six characters."""
    for unit, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "m")):
        if seconds >= unit:
            amount = seconds / unit
            return f"{amount:.0f} {name}" if amount >= 99.95 else f"{amount:.1f} {name}"
    return f"{seconds:.0f} s"


def _bar(one: Figures, y: float, longest: float) -> list[str]:
    room = _WIDTH - _LEFT - _RIGHT
    width = room * one.mean / longest if longest else 0
    colour = _COLOURS[one.policy]
    return [
        svg.text(_LEFT - 8, y + 12, one.policy, anchor="end"),
        f'<rect x="{_LEFT}" y="{y + 2:.1f}" width="{width:.1f}" height="{_ROW - 4}" '
        f'fill="{colour}"><title>{escape(SAID[one.policy])}</title></rect>',
        svg.text(_LEFT + width + 6, y + 12, short(one.mean), fill="#333"),
    ]


def _curves(figures: Sequence[Figures], top: float) -> tuple[list[str], float]:
    height, room = 240.0, _WIDTH - _LEFT - _RIGHT
    latest = math.log(max(one.completions[-1] for one in figures))
    first = min(max(1.0, one.completions[0]) for one in figures)
    earliest = min(math.log(first), latest - 1)

    def x(seconds: float) -> float:
        share = (math.log(max(seconds, 1e-9)) - earliest) / (latest - earliest)
        return _LEFT + room * min(1.0, max(0.0, share))

    parts = [svg.frame(_LEFT, top, room, height)]
    for share in (0.25, 0.5, 0.75, 1.0):
        at = top + height * (1 - share)
        parts.append(svg.text(_LEFT - 8, at + 4, f"{share:.0%}", anchor="end", fill="#555"))
        parts.append(svg.rule(_LEFT, at, _LEFT + room, at))
    for seconds, name in _TIMES:
        if earliest <= math.log(seconds) <= latest:
            parts.append(svg.rule(x(seconds), top, x(seconds), top + height))
            parts.append(
                svg.text(x(seconds), top + height + 16, name, anchor="middle", fill="#555")
            )
    for number, one in enumerate(figures):
        points = [
            (x(seconds), top + height * (1 - step / 100))
            for step, seconds in enumerate(one.completions)
        ]
        colour = _COLOURS[one.policy]
        parts.append(svg.curve(points, colour))
        parts.append(svg.text(_LEFT + 10, top + 18 + 15 * number, one.policy, fill=colour))
    return parts, height
