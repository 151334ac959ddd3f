"""Where a line that changes can be drawn: the last line of a terminal, or a notebook's cell.

On a terminal, workers write at the same time and know nothing of the line. So it is kept out of
their way: while it is shown, all that is written scrolls above it. Each change is one write, as
that is never mixed with what others write.
"""

import io
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

_SMALLEST = 3
"""Rows of a terminal that can spare one."""
_SAVE, _RESTORE = "\x1b7", "\x1b8"
_DOWN, _UP = "\x1bD", "\x1b[A"
"""Within the column; down scrolls at the bottom."""
_ALL_ROWS = "\x1b[r"

_drawing = threading.Lock()
"""Held by the one line that is shown: a second one, of another thread, is not drawn meanwhile."""


class Terminal:
    """The last line of the terminal at this descriptor. Used by one thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rows = 0
        """Of the terminal when the line was set apart; 0 while it is not."""
        self._shown = ""

    def show(self, content: "RenderableType") -> None:
        """Draw this in place of what was there."""
        columns, rows = os.get_terminal_size(self._descriptor)
        if rows < _SMALLEST or not (self._rows or _drawing.acquire(blocking=False)):
            return
        apart = "" if rows == self._rows else self._free() + _set_apart(rows)
        self._rows = rows
        line = self._text(content, columns)
        if apart or line != self._shown:
            self._shown = line
            self._write(f"{apart}{_SAVE}{_to(rows)}{line}{_RESTORE}")

    def close(self, last: "RenderableType | None") -> None:
        """Take the line away; leave this among what was written."""
        if not self._rows:
            return
        columns, _ = os.get_terminal_size(self._descriptor)
        left = "" if last is None else self._text(last, columns) + "\r\n"
        self._write(self._free() + left)
        self._rows = 0
        _drawing.release()

    def _free(self) -> str:
        return f"{_SAVE}{_ALL_ROWS}{_to(self._rows)}{_RESTORE}" if self._rows else ""

    def _text(self, content: "RenderableType", columns: int) -> str:
        from rich.console import Console

        console = Console(file=sys.stderr, force_terminal=True, width=columns)
        with console.capture() as captured:
            console.print(content, end="")
        return captured.get().partition("\n")[0]

    def _write(self, text: str) -> None:
        data = text.encode()
        while data:
            data = data[os.write(self._descriptor, data) :]


class Notebook:
    """A place below a notebook's cell. Used by one thread."""

    def __init__(self) -> None:
        self._place: Any = None

    def show(self, content: "RenderableType") -> None:
        """Draw this in place of what was there."""
        self._put(_html(content))

    def close(self, last: "RenderableType | None") -> None:
        """Leave this, or nothing."""
        if self._place is not None:
            self._put("" if last is None else _html(last))

    def _put(self, text: str) -> None:
        from IPython.display import HTML, display

        if self._place is None:
            self._place = display(HTML(text), display_id=True)
        else:
            self._place.update(HTML(text))


def here() -> Terminal | Notebook | None:
    """What somebody looks at, if anybody does: stderr on a terminal, or a notebook."""
    shell = sys.modules.get("IPython")
    current = shell.get_ipython() if shell is not None else None
    if hasattr(current, "kernel"):
        return Notebook()
    try:
        if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
            return None
        return Terminal(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):
        return None


def _set_apart(rows: int) -> str:
    """Keep the last row from scrolling. The cursor is not left in it, and stays where it was."""
    return f"{_DOWN}{_UP}{_SAVE}\x1b[1;{rows - 1}r{_RESTORE}"


def _to(row: int) -> str:
    """Go to the start of this row, and clear it."""
    return f"\x1b[{row};1H\x1b[2K"


def _html(content: "RenderableType") -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), record=True, width=100, force_jupyter=False)
    console.print(content)
    return console.export_html(
        inline_styles=True, code_format="<pre style='margin:0;line-height:normal'>{code}</pre>"
    )
