"""The list of jobs: the table of `sublet ps`, with a line that is chosen."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from sublet.top.arrangement import Group
from sublet.views.job_table import COLUMNS, cells, state
from sublet.views.table import line_writer

_STYLES = {
    "running": Style(color="green"),
    "waiting": Style(color="yellow"),
    "paused": Style(color="magenta"),
    "failed": Style(color="red"),
    "lost": Style(color="red"),
    "done": Style(dim=True),
    "stopped": Style(dim=True),
    "cancelled": Style(dim=True),
}
_CHOSEN = Style(reverse=True)


class JobList(ScrollView, can_focus=True):
    """Lines of jobs below a line of titles. The chosen job stays chosen while lines move."""

    BINDINGS: ClassVar = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "move(-1000000)", show=False),
        Binding("end,G", "move(1000000)", show=False),
    ]

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._groups: Sequence[Group] = ()
        self._rows: list[list[str]] = []
        self._write: Callable[[Sequence[str]], str] = "".join
        self._shown: dict[int, str] = {}
        """The lines that were drawn last, by number; those that nobody sees are not written."""
        self._at = 0
        self._empty = ""

    @property
    def chosen(self) -> Group | None:
        """The jobs of the chosen line; None if there are no lines."""
        return self._groups[self._at] if self._groups else None

    def show(self, groups: Sequence[Group], now: float, empty: str) -> None:
        """Show these jobs, or this text if there are none. Draws the lines that have changed."""
        before = self.chosen
        self._groups, self._empty = groups, empty
        if before is not None:
            places = {row.id: at for at, group in enumerate(groups) for row in group}
            self._at = places.get(before[0].id, self._at)
        self._at = max(0, min(self._at, len(groups) - 1))
        self._draw(now)

    def _draw(self, now: float) -> None:
        width = max(20, self.scrollable_content_region.width)
        rows = [cells(group, now) for group in self._groups]
        self._write = line_writer(COLUMNS, rows, width)
        self._rows = [[column.title for column in COLUMNS], *rows]
        size = Size(width, max(2, len(self._rows)))
        if self.virtual_size != size or not rows or not self._shown:
            self._shown.clear()
            self.virtual_size = size
            self.refresh()
            return
        for number, old in self._shown.items():
            if old != self._write(self._rows[number]):
                self._refresh_line(number)

    def _refresh_line(self, number: int) -> None:
        y = number - (self.scroll_offset.y if number else 0)
        if 0 < y < self.size.height or number == 0:
            self.refresh(Region(0, y, self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        """One line of the widget; the first has the titles wherever the list is scrolled to."""
        number = y + self.scroll_offset.y if y else 0
        width = self.size.width
        if not self._groups:
            text, style = (self._empty if y == 1 else ""), Style(dim=True)
        elif number >= len(self._rows):
            text, style = "", Style()
        else:
            text = self._shown[number] = self._write(self._rows[number])
            style = Style(bold=True) if not number else self._style(number - 1)
        return Strip([Segment(text, style)]).adjust_cell_length(width, style).crop(0, width)

    def _style(self, at: int) -> Style:
        style = _STYLES.get(state(self._groups[at][0]), Style())
        return style + _CHOSEN if at == self._at else style

    def action_move(self, by: int) -> None:
        self._choose(self._at + by)

    def action_page(self, by: int) -> None:
        self._choose(self._at + by * max(1, self.size.height - 2))

    def _choose(self, at: int) -> None:
        if not self._groups:
            return
        self._at = max(0, min(at, len(self._groups) - 1))
        line, top, shown = self._at, self.scroll_offset.y, max(1, self.size.height - 1)
        if line < top or line >= top + shown:
            self.scroll_to(y=line if line < top else line - shown + 1, animate=False)
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Choose the line below the pointer."""
        if event.y > 0:
            self._choose(event.y - 1 + self.scroll_offset.y)
