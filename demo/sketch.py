"""Memory over time as characters: the programs stacked, the device's size as a line.

Each program is a letter, which also has a colour where there are colours.
"""

from string import ascii_lowercase

from rich.text import Text

from demo.picture import colour, facts, stack
from demo.race import Race
from sublet.units import format_bytes

_MOST_LINES = 16
_MARGIN = 9
_DEATH = "x"


def draw(ways: dict[str, Race], capacity: int, width: int) -> list[Text]:
    """A panel for each way side by side, all on the same scales."""
    lines = _lines_below(max(race.most for race in ways.values()), capacity)
    cell = capacity / lines
    height = max(lines, *(-(-race.most // cell) for race in ways.values()))
    seconds = max(race.seconds for race in ways.values())
    wide = (width - _MARGIN) // len(ways) - 1
    titles, figures = Text(" " * _MARGIN), Text(" " * _MARGIN)
    bottom, times = Text("0".rjust(_MARGIN - 2) + " +"), Text(" " * _MARGIN)
    panels = []
    for name, race in ways.items():
        bad = race.deaths or race.most > capacity
        titles.append(name.capitalize()[:wide].ljust(wide + 1), "bold")
        figures.append(facts(race)[:wide].ljust(wide + 1), "red" if bad else "green")
        panels.append(_panel(race, wide, seconds, int(height), cell))
        deaths = {min(wide - 1, int(one.ended / seconds * wide)) for one in race.deaths}
        for place in range(wide):
            bottom.append(*((_DEATH, "bold red") if place in deaths else ("-", "")))
        bottom.append("+")
        times.append(f"{round(seconds)} s".rjust(wide) + " ", "dim")
    drawn = [titles, figures]
    for row in reversed(range(int(height))):
        if row == lines - 1:
            drawn.append(_line(format_bytes(capacity), "+", [Text("-" * wide)] * len(ways), "+"))
        label = format_bytes(round((row + 1) * cell)) if row == height - 1 >= lines else ""
        drawn.append(_line(label, "|", [panel[row] for panel in panels], "|"))
    if any(race.deaths for race in ways.values()):
        times = Text(f"{_DEATH} died".ljust(_MARGIN)) + times[_MARGIN:]
    return [*drawn, bottom, times, *_legend(next(reversed(ways.values())), width)]


def _lines_below(most: int, capacity: int) -> int:
    """How many lines the device's size gets, so that all of the picture fits."""
    fitting = [n for n in range(1, _MOST_LINES) if -(-most * n // capacity) <= _MOST_LINES]
    return max(fitting, default=1)


def _panel(race: Race, wide: int, seconds: float, height: int, cell: float) -> list[Text]:
    """The lines of one way, the lowest first. A cell is whose its middle is."""
    rows = [Text() for _ in range(height)]
    for held in race.heights(wide, seconds):
        bands = [(name, held[name]) for name in stack(race) if held.get(name)]
        for row in range(height):
            left = (row + 0.5) * cell
            owner = None
            for name, amount in bands:
                left -= amount
                if left < 0:
                    owner = name
                    break
            if owner is None:
                rows[row].append(" ")
            else:
                rows[row].append(_letter(owner, race), f"black on {colour(owner)}")
    return rows


def _letter(name: str, race: Race) -> str:
    return "#" if not name else ascii_lowercase[(stack(race).index(name) - 1) % 26]


def _line(label: str, edge: str, panels: list[Text], last: str) -> Text:
    line = Text(label.rjust(_MARGIN - 2) + " " + edge)
    for panel in panels:
        line.append(panel)
        line.append(last)
    return line


def _legend(race: Race, width: int) -> list[Text]:
    lines = [Text()]
    for name in stack(race):
        words = name or "Sublet itself"
        if len(lines[-1]) + len(words) + 4 > width:
            lines.append(Text())
        lines[-1].append(_letter(name, race), f"black on {colour(name)}")
        lines[-1].append(f" {words}  ")
    return lines
