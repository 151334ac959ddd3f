"""The application: what is where, which key does what, and when something is drawn again.

    feed ──────▶ Seen, Lost ─┐                          ┌─▶ title, devices, plots, models
    model_watch ─▶ Served ───┼─▶ TopApp ─▶ soon: draw ──┤
    keys ────────────────────┘     │                    └─▶ list of jobs
                                   └─▶ requests to the broker, in threads

Nothing is drawn unless something has changed: a view, a key, the size, or a time that is shown.
"""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input

from sublet.client import jobs
from sublet.client.connection import Connection
from sublet.client.snapshot_feed import View
from sublet.errors import SubletError
from sublet.home import Home
from sublet.serving.metrics import Row
from sublet.text import plain
from sublet.top import panels
from sublet.top.arrangement import FILTERS, ORDERS, Arrangement, Group, next_of
from sublet.top.feed import Feed
from sublet.top.job_list import JobList
from sublet.top.live_rows import LiveRows
from sublet.top.log_pane import LogPane
from sublet.top.memory_history import MemoryHistory
from sublet.top.model_watch import ModelWatch
from sublet.top.news import Lost, Seen, Served
from sublet.top.panels import Panel
from sublet.top.screens import HELP, Question, Sheet
from sublet.views.job_table import details, numbers
from sublet.views.table import array_name
from sublet.wire.messages import Verb
from sublet.wire.rows import JobRow

_SOON = 0.2
"""Seconds in which changes are gathered into one drawing."""
_TICK = 1.0
"""Seconds between looks at times that are shown, at least."""
_REST = 50.0
_LONGEST_REST = 5.0
"""A drawing waits for so many times the processor time that was used since the one before, unless a
key asks for it, but for no more than so many seconds: a list of any length costs about a fiftieth
of a processor."""
_TO_END = 2.0
"""Seconds in which it ends in order after a signal."""
_KEYS = "q quit  ? help  enter details  l log  c cancel  p pause  / search  f filter  s sort"
_FEW_KEYS = "q quit  ? help  l log  c cancel  p pause  / search  f filter  s sort"
_SEARCH = "number, name, state, device or reason of a job"
_EMPTY = "nothing runs; try `sublet run train.py`"

Act = Callable[[Verb, Sequence[int]], Sequence[str]]


class TopApp(App[None]):
    """Without a connection it shows the views that it is given to `take`."""

    CSS_PATH = "top.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide")]  # noqa: RUF012 - as in Textual
    VERTICAL_BREAKPOINTS = [(0, "-short"), (18, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar = [
        Binding("q,ctrl+c", "quit"),
        Binding("ctrl+z", "suspend_process"),
        Binding("question_mark", "help"),
        Binding("enter", "details"),
        Binding("l", "log"),
        Binding("c", "cancel"),
        Binding("p", "pause"),
        Binding("s", "sort"),
        Binding("S", "backwards"),
        Binding("f", "filter"),
        # Before any other key is looked at: what is typed after it is text.
        Binding("slash", "search", priority=True),
        Binding("escape", "close"),
        Binding("d", "next_device"),
        Binding("w", "next_span"),
    ]

    def __init__(
        self,
        home: Home,
        connection: Connection | None = None,
        history: MemoryHistory | None = None,
        ascii_only: bool = False,
        act: Act = jobs.act,
    ) -> None:
        driver = None
        if ascii_only:
            from sublet.top.ascii_driver import AsciiDriver

            driver = AsciiDriver
        super().__init__(driver_class=driver, ansi_color=True)
        self._home = home
        self._connection = connection
        self._act = act
        self._feed: Feed | None = None
        self._models: ModelWatch | None = None
        self._view: View | None = None
        self._rows = LiveRows()
        self._lost = ""
        """Why there is no broker; empty if there is one."""
        self._served: list[Row] = []
        self._history = history or MemoryHistory()
        self._arrangement = Arrangement()
        self._device = 0
        self._span = 600.0
        self._smooth = not (ascii_only or self.no_color)
        self._drawing: Timer | None = None
        self._ticking: Timer | None = None
        self._rests_until = 0.0
        """When the next drawing may be that nobody at the keys waits for (monotonic)."""
        self._spent: float | None = None
        """The processor time of this thread at the last drawing."""

    def compose(self) -> ComposeResult:
        yield Panel("title")
        yield Panel("devices")
        with Vertical(id="body"):
            with Vertical(id="side"):
                yield Panel("plots")
                yield Panel("models")
            with Vertical(id="main"):
                yield Panel("listing")
                yield JobList("jobs")
                yield LogPane(self._home, self._find)
        yield Input(id="search", placeholder=_SEARCH)
        yield Panel("keys")

    def on_mount(self) -> None:
        """Begin to listen."""
        self.theme = "ansi-dark"
        field = self.query_one("#search", Input)
        field.cursor_blink = field.display = False
        self.query_one(JobList).focus()
        if self._connection is None:
            return
        _end_on_signals(self.exit)
        self._feed = Feed(
            self._home,
            self._connection,
            lambda view: self._post(Seen(view)),
            lambda why: self._post(Lost(why)),
        )
        self._models = ModelWatch(self._home, lambda rows: self._post(Served(rows)))

    def on_unmount(self) -> None:
        """Stop the threads."""
        if self._models is not None:
            self._models.close()
        if self._feed is not None:
            self._feed.close()

    def _post(self, message: Message) -> None:
        """Post from a thread; at the very end there may be nobody to hear it."""
        with contextlib.suppress(RuntimeError):
            self.post_message(message)

    # What comes from outside.

    def take(self, view: View) -> None:
        """Show this view from now on."""
        now = time.time()
        self._view, self._lost = view, ""
        self._rows.take(view.jobs, now)
        self._history.note(now, view)
        self._draw_soon()

    def on_seen(self, message: Seen) -> None:
        """The broker has said something."""
        self.take(message.view)

    def on_lost(self, message: Lost) -> None:
        """The broker has gone: what was seen last stays on the screen, and is said to be old."""
        self._lost = message.why
        self._history.lose(time.time())
        self._draw_soon()

    def on_served(self, message: Served) -> None:
        """An engine has said something."""
        self._served = message.rows
        self._draw_soon()

    def on_panel_resized(self) -> None:
        """Another size, or something has come or gone beside it."""
        self._draw()

    def _find(self, number: int) -> JobRow | None:
        return self._view.jobs.get(number) if self._view is not None else None

    # Drawing.

    def _draw_soon(self) -> None:
        if self._drawing is None:
            pause = max(_SOON, self._rests_until - time.monotonic())
            self._drawing = self.set_timer(pause, self._draw)

    def _draw(self) -> None:
        if self._drawing is not None:
            self._drawing.stop()
            self._drawing = None
        if not self.is_running or self._view is None:
            return
        width = self.size.width
        self._panel("keys").show(Text(_KEYS if len(_KEYS) <= width else _FEW_KEYS))
        self._panel("devices").show(panels.devices(self._view, width))
        served = self._panel("models")
        served.display = bool(self._served)
        served.show(panels.models(self._served, served.content_size.width or width))
        self._draw_times()

    def _draw_times(self) -> None:
        """Draw what goes on with the time, now and as long as it does."""
        if self._ticking is not None:
            self._ticking.stop()
            self._ticking = None
        if not self.is_running or self._view is None:
            return
        now, words = time.time(), self._arrangement.words()
        rows, devices = self._rows.at(now), list(self._view.devices.values())
        groups = self._arrangement.groups(rows, now)
        width, plots = self.size.width, self._panel("plots")
        self._panel("title").show(panels.title(rows, self._view.left_out, self._lost, width))
        self._panel("listing").show(Text(f"jobs {words}" if words else "", "cyan"))
        self.query_one(JobList).show(groups, now, f"no job {words}" if words and rows else _EMPTY)
        size = plots.content_size
        span, history = self._span, self._history
        plots.show(panels.plots(history, devices, self._device, now, span, size, self._smooth))
        spent = time.thread_time()
        used = 0.0 if self._spent is None else spent - self._spent
        self._spent, rest = spent, min(_LONGEST_REST, _REST * used)
        self._rests_until = time.monotonic() + rest
        if any(row.state != "finished" for row in rows) or history.moves(now - span):
            self._ticking = self.set_timer(max(_TICK, rest), self._draw_times)

    def _panel(self, name: str) -> Panel:
        return self.query_one(f"#{name}", Panel)

    # Keys.

    def action_help(self) -> None:
        self.push_screen(Sheet(HELP))

    def action_details(self) -> None:
        if (group := self._chosen()) is not None:
            width, now = max(40, min(100, self.size.width - 8)), time.time()
            self.push_screen(Sheet("\n\n".join(details(row, now, width) for row in group)))

    def action_sort(self) -> None:
        self._arrange(order=next_of(ORDERS, self._arrangement.order))

    def action_backwards(self) -> None:
        self._arrange(backwards=not self._arrangement.backwards)

    def action_filter(self) -> None:
        self._arrange(show=next_of(FILTERS, self._arrangement.show))

    def _arrange(self, **changes: str | bool) -> None:
        self._arrangement = replace(self._arrangement, **changes)  # type: ignore[arg-type]
        self._draw()

    def action_next_device(self) -> None:
        count = len(self._view.devices) if self._view is not None else 1
        self._device = (self._device + 1) % max(1, count)
        self._draw()

    def action_next_span(self) -> None:
        spans = list(panels.SPANS)
        self._span = spans[(spans.index(self._span) + 1) % len(spans)]
        self._draw()

    def action_search(self) -> None:
        field = self.query_one("#search", Input)
        field.display = True
        self.screen.set_focus(field)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In the search itself, and while something is above all, a slash is a slash."""
        if action == "search":
            return len(self.screen_stack) == 1 and self.focused is not self.query_one("#search")
        return True

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search while it is typed."""
        self._arrange(text=event.value)

    def on_input_submitted(self) -> None:
        """Back to the list, which still shows what was found."""
        self._close_search()

    def _close_search(self) -> None:
        self.query_one("#search").display = False
        self.query_one(JobList).focus()

    def action_close(self) -> None:
        """Forget the search, or else close the output."""
        field = self.query_one("#search", Input)
        if field.display or field.value:
            field.value = ""
            self._close_search()
        else:
            self._follow(None)

    def action_log(self) -> None:
        """Follow the output of the chosen job, or stop doing so."""
        row = group[0] if (group := self._chosen()) is not None else None
        same = row is not None and row.id == self.query_one(LogPane).follows
        self._follow(None if same else row)

    def _follow(self, row: JobRow | None) -> None:
        pane = self.query_one(LogPane)
        self.screen.set_class(row is not None, "following")
        if row is not None:
            pane.follow(row)
        else:
            pane.stop()
            self.query_one(JobList).focus()

    def action_cancel(self) -> None:
        if (group := self._chosen(live=True)) is None:
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._do("cancel", [row.id for row in group])

        self.push_screen(Question(f"Cancel {_named(group)}?"), answered)

    def action_pause(self) -> None:
        if (group := self._chosen(live=True)) is not None:
            verb: Verb = "resume" if group[0].state == "paused" else "pause"
            self._do(verb, [row.id for row in group])

    def _do(self, verb: Verb, chosen: list[int]) -> None:
        """Ask the broker, unless there is none: it would be started."""
        if self._lost:
            self.notify("No broker runs; the next `sublet` command starts one.", severity="error")
        else:
            self._ask(verb, chosen)

    @work(thread=True)
    def _ask(self, verb: Verb, chosen: list[int]) -> None:
        """Ask the broker, and say what it answered."""
        try:
            said, severe = "\n".join(map(plain, self._act(verb, chosen))), False
        except (SubletError, OSError) as error:
            said, severe = plain(str(error)), True
        with contextlib.suppress(RuntimeError):  # The application has ended meanwhile.
            severity = "error" if severe else "information"
            self.call_from_thread(self.notify, said, severity=severity, markup=False)

    def _chosen(self, live: bool = False) -> Group | None:
        group = self.query_one(JobList).chosen
        if group is not None and live and group[0].state == "finished":
            self.notify(f"{_named(group)} has ended", markup=False)
            return None
        return group


def _named(group: Group) -> str:
    """Jobs of one line as a person would call them."""
    return f"{numbers(group)} {plain(array_name(group[0].name, group[-1].name))}"


def _end_on_signals(end: Callable[[], None]) -> None:
    """End in order on SIGTERM and SIGHUP. If that takes long, end at once: Textual waits without
    end for a terminal that takes nothing any more, because it is stopped or gone."""
    loop = asyncio.get_running_loop()

    def heard(number: int, _frame: object) -> None:
        late = threading.Timer(_TO_END, os._exit, (128 + number,))
        late.daemon = True
        late.start()
        loop.call_soon_threadsafe(end)

    # Not by the loop, whose thread may be the one that waits.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, heard)
