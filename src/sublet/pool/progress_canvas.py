"""Where the progress bar is drawn: the last line of a terminal, or a notebook's cell.

Workers write to the terminal at the same time. So while the bar is shown, everything else scrolls
above it, and each change of the bar is one write, which is never mixed with others.
"""

import io
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

_SMALLEST = 3
"""Rows of the smallest terminal on which a bar is drawn."""
_SAVE, _RESTORE = "\x1b7", "\x1b8"
_DOWN, _UP = "\x1bD", "\x1b[A"
"""Move within the column; down scrolls at the bottom."""
_ALL_ROWS = "\x1b[r"

_drawing = threading.Lock()
"""Held while a bar is shown; a second bar, of another thread, is not drawn meanwhile."""


class Terminal:
    """The last line of the terminal at this descriptor. Used by one thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rows = 0
        """Rows of the terminal when the last one was reserved; 0 while it is not."""
        self._shown = ""

    def show(self, content: "RenderableType") -> None:
        """Show this line in place of the last one."""
        columns, rows = os.get_terminal_size(self._descriptor)
        if rows < _SMALLEST or not (self._rows or _drawing.acquire(blocking=False)):
            return
        reserve = "" if rows == self._rows else self._free() + _reserve_last_row(rows)
        self._rows = rows
        line = self._text(content, columns)
        if reserve or line != self._shown:
            self._shown = line
            self._write(f"{reserve}{_SAVE}{_to(rows)}{line}{_RESTORE}")

    def close(self, last: "RenderableType | None") -> None:
        """Remove the line, and print `last` as ordinary output."""
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
    """An output below a notebook's cell. Used by one thread."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, content: "RenderableType") -> None:
        """Show this line in place of the last one."""
        self.put(_html(content))

    def close(self, last: "RenderableType | None") -> None:
        """Leave `last`, or an empty output."""
        if self._handle is not None:
            self.put("" if last is None else _html(last))

    def put(self, text: str) -> None:
        """Replace the output by this HTML."""
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(text), display_id=True)
        else:
            self._handle.update(HTML(text))


def here() -> Terminal | Notebook | None:
    """The notebook or terminal that a user looks at; None without one."""
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


def _reserve_last_row(rows: int) -> str:
    """Keep the last row from scrolling, and the cursor out of it."""
    return f"{_DOWN}{_UP}{_SAVE}\x1b[1;{rows - 1}r{_RESTORE}"


def _to(row: int) -> str:
    """Go to the start of this row and clear it."""
    return f"\x1b[{row};1H\x1b[2K"


def _html(content: "RenderableType") -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), record=True, width=100, force_jupyter=False)
    console.print(content)
    return console.export_html(
        inline_styles=True, code_format="<pre style='margin:0;line-height:normal'>{code}</pre>"
    )
