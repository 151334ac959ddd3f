"""A comparison as text of at most 80 columns."""

from collections.abc import Sequence

from sublet.tools.replay.comparison import ASSUMED, SAID, Figures
from sublet.tools.replay.drawing import short

_BAR = 46
_HEAD = ("policy", "mean", "p95", "queued", "longest", "makespan", "memory", "past", "decides")
_WIDTHS = (7, 7, 7, 7, 8, 9, 7, 5, 8)


def render(figures: Sequence[Figures]) -> str:
    """One table and its bars for each assumption, then what the words mean."""
    parts = []
    for assumed in dict.fromkeys(one.contention for one in figures):
        these = [one for one in figures if one.contention == assumed]
        parts.append("\n".join([ASSUMED[assumed], "", *_table(these), "", *_bars(these)]))
    policies = dict.fromkeys(one.policy for one in figures)
    words = [f"  {name:<7} {SAID[name]}" for name in policies]
    words += [
        "  bars: mean completion time, and how many times shorter than one at a time.",
        "  mean, p95: completion time, from submission to the end. queued: mean wait",
        "  for the start; longest: the longest one. memory: share of the devices' memory",
        "  that jobs used. past: starts that passed the first in line after our bound",
        "  (ours must be 0). decides: mean real time of one decision.",
    ]
    return "\n\n".join([*parts, "\n".join(words)])


def _table(figures: Sequence[Figures]) -> list[str]:
    rows = [
        (
            one.policy,
            short(one.mean),
            short(one.p95),
            short(one.queued),
            short(one.longest),
            short(one.makespan),
            f"{one.memory:.0%}",
            "-" if one.broken is None else str(one.broken),
            _micro(one.decision),
        )
        for one in figures
    ]
    lines = [_line(_HEAD), "─" * len(_line(_HEAD))]
    return [*lines, *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    first = cells[0].ljust(_WIDTHS[0])
    return first + "".join(
        cell.rjust(width + 1) for cell, width in zip(cells[1:], _WIDTHS[1:], strict=True)
    )


def _bars(figures: Sequence[Figures]) -> list[str]:
    longest = max(one.mean for one in figures)
    base = next((one.mean for one in figures if one.policy == "one"), None)
    lines = []
    for one in figures:
        bar = "█" * max(1, round(_BAR * one.mean / longest))
        better = f"{base / one.mean:.2f}x" if base and one.policy != "one" else ""
        lines.append(f"{one.policy:<7} {bar} {better}".rstrip())
    return lines


def _micro(seconds: float) -> str:
    micro = seconds * 1e6
    return f"{micro:.0f} µs" if micro < 1000 else f"{micro / 1000:.1f} ms"
