"""How a sweep is getting on: the last line of a terminal, a notebook's output, or plain lines.

On a terminal and in plain output a line is printed for each way that was chosen and for each trial
that is better than all before.
"""

import html
import sys
import time
from collections.abc import Callable

from sublet.pool import progress_canvas
from sublet.sweeps import table
from sublet.sweeps.records import Sweep, Trial
from sublet.text import plain
from sublet.units import format_seconds
from sublet.views.table import cut

_AGAIN = 0.2
"""Seconds between two changes of what is drawn."""
_LINES_AGAIN = 10.0
"""Seconds between two lines of plain output."""
_WIDTH = 80


class Progress:
    """Draws a sweep while it runs. `work` is how many epochs all trials have together."""

    def __init__(
        self,
        work: int,
        wanted: bool = True,
        say: Callable[[str], None] | None = None,
        note: Callable[[], str] = lambda: "",
    ) -> None:
        self._work = work
        self._wanted = wanted
        self._say = say or _print
        self._note = note
        """Why trials wait."""
        self._canvas = progress_canvas.here() if wanted else None
        self._began = time.monotonic()
        self._before: int | None = None
        """The epochs that were trained before this run."""
        self._drawn = self._began
        self._ways = 0
        self._best: int | None = None

    def changed(self, sweep: Sweep) -> None:
        """Draw it, if it was not drawn a moment ago."""
        if not self._wanted:
            return
        done = _trained(sweep)
        if self._before is None:
            self._before = done
        for line in table.ways(sweep)[self._ways :]:
            self._say(line)
        self._ways = max(self._ways, len(sweep.ways))
        self._tell_best(sweep)
        now = time.monotonic()
        if now - self._drawn < (_LINES_AGAIN if self._canvas is None else _AGAIN):
            return
        self._drawn = now
        self._draw(sweep)

    def close(self, sweep: Sweep | None) -> None:
        """Stop drawing; with the sweep, say how it ended."""
        if not self._wanted:
            return
        if self._canvas is not None:
            self._canvas.close(None)
        if sweep is not None:
            self._say(self.summary(sweep))

    def summary(self, sweep: Sweep) -> str:
        """One line at the end."""
        states = [trial.state for trial in sweep.trials]
        ended = [table.count(len(states), "trial")]
        ended += [f"{states.count(one)} {one}" for one in ("pruned", "failed") if one in states]
        took = format_seconds(time.monotonic() - self._began)
        best = sweep.best
        found = "no finite value" if best is None else f"best {_shown(best, sweep)}"
        return f"{', '.join(ended)} in {took}; {found}"

    def line(self, sweep: Sweep) -> str:
        """The sweep in one line of 80 columns."""
        done, over = _trained(sweep), sum(trial.over for trial in sweep.trials)
        elapsed = time.monotonic() - self._began
        fresh = done - (self._before or 0)
        parts = [f"{over}/{len(sweep.trials)} trials"]
        if sweep.settings.epochs > 1 and sweep.rung is not None:
            alive = [sweep.trials[number].epochs for number in sweep.rung.trials]
            parts.append(f"epoch {max(alive, default=0)}/{sweep.settings.epochs}")
        if fresh and self._work:
            share = fresh / max(self._work - (self._before or 0), 1)
            per_minute = share * max(len(sweep.trials), 1) / elapsed * 60
            parts.append(f"{per_minute:.3g}/min")
            if share < 1:
                parts.append(f"ETA {format_seconds(elapsed * (1 - share) / share)}")
        if sweep.best is not None:
            parts.append(f"best {_shown(sweep.best, sweep)}")
        if note := self._note():
            parts.append(plain(note))
        return cut("  ".join(parts), _WIDTH - 1)

    def _tell_best(self, sweep: Sweep) -> None:
        best = sweep.best
        if best is None or not best.over or best.number == self._best:
            return
        self._best = best.number
        if not isinstance(self._canvas, progress_canvas.Notebook):
            self._say(f"best so far: {_shown(best, sweep)}")

    def _draw(self, sweep: Sweep) -> None:
        line = self.line(sweep)
        match self._canvas:
            case progress_canvas.Notebook():
                self._canvas.put(f"<pre>{html.escape(line)}</pre>{table.html(sweep)}")
            case progress_canvas.Terminal():
                from rich.text import Text

                self._canvas.show(Text(line, no_wrap=True))
            case None:
                self._say(line)


def _trained(sweep: Sweep) -> int:
    return sum(trial.epochs for trial in sweep.trials)


def _shown(trial: Trial, sweep: Sweep) -> str:
    """`val_loss 0.1234, trial 7: units=32 seed=1`."""
    params = " ".join(f"{plain(name)}={table.shown(one)}" for name, one in trial.params.items())
    value = "" if trial.value is None else table.shown(trial.value)
    return f"{plain(sweep.settings.metric)} {value}, trial {trial.number}: {params}"


def _print(line: str) -> None:
    print(f"sublet: {plain(line)}", file=sys.stderr, flush=True)
