"""Memory over time as an SVG: the programs stacked, the device's size as a line.

Has its own background, so that it can be read on light and on dark pages.
"""

import colorsys
from itertools import groupby
from xml.sax.saxutils import escape

from demo.catalogue import PROGRAMS
from demo.race import Race
from sublet.units import GiB, format_bytes, format_seconds

WIDTH, HEIGHT = 860, 400
_LEFT, _TOP, _BETWEEN = 62.0, 84.0, 14.0
_TALL = 200.0
_STEP = 3.0
"""Points between two moments that are drawn."""
_LEGEND = 7
"""Names in a line of the legend."""
NOBODYS = "#8a8a8a"
_STYLE = """<style>
.ground { fill: #ffffff } .ink { fill: #1f2328 } .faint { fill: #59636e }
.frame { fill: none; stroke: #d1d9e0 } .limit { stroke: #1f2328; stroke-dasharray: 6 4 }
.death { stroke: #d1242f; stroke-width: 2 } .bad { fill: #d1242f } .good { fill: #1a7f37 }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117 } .ink { fill: #f0f6fc } .faint { fill: #9198a1 }
.frame { stroke: #3d444d } .limit { stroke: #f0f6fc }
.death { stroke: #f85149 } .bad { fill: #f85149 } .good { fill: #3fb950 }
}
</style>"""


def colour(name: str) -> str:
    """The colour of a program; grey for what is no program's."""
    places = {program.name: place for place, program in enumerate(PROGRAMS)}
    if name not in places:
        return NOBODYS
    # Neighbours in the stack are far apart on the colour wheel.
    hue, light = places[name] * 0.382 % 1, 0.5 + 0.12 * (places[name] % 2)
    red, green, blue = colorsys.hls_to_rgb(hue, light, 0.55)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def stack(race: Race) -> list[str]:
    """The names from the bottom to the top: first what is no program's, last who is not counted."""
    counted = ["", *(finish.name for finish in race.finishes)]
    seen = dict.fromkeys(name for sample in race.samples for name in sample.held)
    return [*counted, *(name for name in seen if name not in counted)]


def facts(race: Race) -> str:
    """How many died, and the most memory, in a few words."""
    dead = f"{len(race.deaths)} died" if race.deaths else "none died"
    return f"{dead}, max {format_bytes(race.most)}"


def draw(ways: dict[str, Race], capacity: int, title: str) -> str:
    """A panel for each way, all on the same scales."""
    most = max(capacity, *(race.most for race in ways.values())) * 1.04
    seconds = max(race.seconds for race in ways.values())
    wide = (WIDTH - _LEFT - 20 - _BETWEEN * (len(ways) - 1)) / len(ways)
    parts = [_STYLE, '<rect class="ground" width="100%" height="100%"/>']
    parts.append(_text(_LEFT, 30, title, "ink", 'font-size="15" font-weight="bold"'))
    for gib in range(int(most / GiB) + 1):
        y = _TOP + _TALL * (1 - gib * GiB / most) + 4
        parts.append(_text(_LEFT - 8, y, f"{gib} GiB", "faint", 'text-anchor="end"'))
    for place, (name, race) in enumerate(ways.items()):
        left = _LEFT + place * (wide + _BETWEEN)
        parts += _panel(name, race, left, wide, most, seconds, capacity)
    limit = _TOP + _TALL * (1 - capacity / most)
    parts.append(f'<path class="limit" d="M{_LEFT:.0f} {limit:.1f}H{WIDTH - 20}"/>')
    parts += _legend(next(reversed(ways.values())))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12">\n{body}\n</svg>\n'
    )


def _panel(
    name: str,
    race: Race,
    left: float,
    wide: float,
    most: float,
    seconds: float,
    capacity: int,
) -> list[str]:
    bad = race.deaths or race.most > capacity
    parts = [
        _text(left, _TOP - 26, name.capitalize(), "ink", 'font-weight="bold"'),
        _text(left, _TOP - 10, facts(race), "bad" if bad else "good"),
    ]
    columns = race.heights(int(wide / _STEP), seconds)
    step = wide / len(columns)
    floors = [0.0] * len(columns)
    for who in stack(race):
        tops = [floor + held.get(who, 0) for floor, held in zip(floors, columns, strict=True)]
        area = _area(floors, tops, left, step, most)
        if area:
            parts.append(f'<path fill="{colour(who)}" d="{area}"/>')
        floors = tops
    bottom = _TOP + _TALL
    for finish in race.deaths:
        x = left + finish.ended / seconds * wide
        parts.append(
            f'<path class="death" d="M{x - 4:.0f} {bottom - 4:.0f}l8 8m0 -8l-8 8"><title>'
            f"{finish.name} died</title></path>"
        )
    parts.append(
        f'<rect class="frame" x="{left:.1f}" y="{_TOP}" width="{wide:.1f}" height="{_TALL}"/>'
    )
    parts.append(_text(left, bottom + 18, "0", "faint"))
    end = format_seconds(seconds)
    parts.append(_text(left + wide, bottom + 18, end, "faint", 'text-anchor="end"'))
    return parts


def _area(floors: list[float], tops: list[float], left: float, step: float, most: float) -> str:
    """Closed shapes between floors and tops, one for each stretch in which there is something."""

    def x(place: int) -> int:
        return round(left + place * step)

    def y(value: float) -> int:
        return round(_TOP + _TALL * (1 - value / most))

    shapes = []
    places = range(len(tops))
    for there, stretch in groupby(places, lambda place: y(tops[place]) < y(floors[place])):
        if not there:
            continue
        inside = list(stretch)
        shape = [f"M{x(inside[0])} {y(floors[inside[0]])}"]
        for height, run in groupby(inside, lambda place: y(tops[place])):
            shape.append(f"V{height}H{x(list(run)[-1] + 1)}")
        for height, run in groupby(reversed(inside), lambda place: y(floors[place])):
            shape.append(f"V{height}H{x(list(run)[-1])}")
        shapes.append("".join(shape) + "Z")
    return "".join(shapes)


def _legend(race: Race) -> list[str]:
    parts = []
    for place, name in enumerate(stack(race)):
        x = _LEFT + place % _LEGEND * 113
        y = _TOP + _TALL + 46 + place // _LEGEND * 18
        parts.append(
            f'<rect x="{x:.0f}" y="{y - 9:.0f}" width="10" height="10" fill="{colour(name)}"/>'
        )
        parts.append(_text(x + 14, y, name or "Sublet itself", "faint", 'font-size="11"'))
    return parts


def _text(x: float, y: float, words: str, kind: str, more: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'
