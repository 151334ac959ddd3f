"""A line at the bottom of a real terminal, while others write there too."""

import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import Iterator

import pytest

from sublet.pool import progress_canvas
from support.screen import Screen

_MARK = b"\0"


class Pty:
    """A terminal that can be written to from one side, and seen from the other."""

    def __init__(self, rows: int = 6, columns: int = 40) -> None:
        self._master, self.descriptor = pty.openpty()
        self.screen = Screen(rows, columns)
        self.resize(rows, columns)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def write(self, text: str) -> None:
        """As a worker does, which knows of no line."""
        os.write(self.descriptor, text.encode())

    def seen(self) -> list[str]:
        """The screen with all that was written until now: a mark behind it has come through."""
        os.write(self.descriptor, _MARK)
        data = b""
        while not data.endswith(_MARK):
            data += os.read(self._master, 65536)
        self.screen.feed(data.removesuffix(_MARK).decode())
        return self.screen.lines

    def close(self) -> None:
        os.close(self._master)
        os.close(self.descriptor)


@pytest.fixture
def terminal() -> Iterator[Pty]:
    made = Pty()
    yield made
    made.close()


def test_what_others_write_stays_apart_from_the_line(terminal: Pty) -> None:
    """However much it is, and when it comes: also in the middle of their lines."""
    terminal.write("before\r\n")
    line = progress_canvas.Terminal(terminal.descriptor)
    line.show("1 of 3")
    assert terminal.seen() == ["before", "", "", "", "", "1 of 3"]
    terminal.write("a\nb\nc\nd\nhalf ")
    line.show("2 of 3")
    terminal.write("and half\n")
    line.show("3 of 3")
    assert terminal.seen()[-1] == "3 of 3"
    assert terminal.screen.text == ["before", "a", "b", "c", "d", "half and half", "3 of 3"]
    line.close("3 of 3, done")
    terminal.write("after\n")
    terminal.seen()
    assert terminal.screen.text == [
        *("before", "a", "b", "c", "d", "half and half"),
        *("3 of 3, done", "after"),
    ]
    assert terminal.screen.scrolls_whole


def test_nothing_is_left_of_a_line_that_is_taken_away(terminal: Pty) -> None:
    line = progress_canvas.Terminal(terminal.descriptor)
    terminal.write("\n\n\n\n\n\nat the bottom")
    line.show("1 of 3")
    line.close(None)
    terminal.write(", still\n")
    terminal.seen()
    assert terminal.screen.text == ["at the bottom, still"]
    assert terminal.screen.scrolls_whole


def test_a_long_line_is_cut_at_the_edge(terminal: Pty) -> None:
    line = progress_canvas.Terminal(terminal.descriptor)
    line.show("x" * 100)
    assert terminal.seen() == ["", "", "", "", "", "x" * 40]
    line.close(None)


def test_the_line_moves_when_the_window_changes(terminal: Pty) -> None:
    line = progress_canvas.Terminal(terminal.descriptor)
    line.show("1 of 3")
    terminal.resize(5, 40)
    line.show("2 of 3")
    assert terminal.seen() == ["", "", "", "", "2 of 3", ""]
    line.close(None)
    assert terminal.seen() == [""] * 6
    assert terminal.screen.scrolls_whole


def test_one_line_is_drawn_at_a_time(terminal: Pty) -> None:
    """Of two maps in two threads, the second is shown when the first is done."""
    first, second = (
        progress_canvas.Terminal(terminal.descriptor),
        progress_canvas.Terminal(terminal.descriptor),
    )
    first.show("first")
    second.show("second")
    assert terminal.seen()[-1] == "first"
    first.close(None)
    second.show("second")
    assert terminal.seen()[-1] == "second"
    second.close(None)


def test_a_terminal_that_is_too_small_is_left_alone(terminal: Pty) -> None:
    terminal.resize(2, 40)
    line = progress_canvas.Terminal(terminal.descriptor)
    line.show("1 of 3")
    line.close("1 of 3")
    assert terminal.seen() == [""] * 6


@pytest.mark.parametrize(("kind", "drawn"), [("xterm", True), ("dumb", False), (None, False)])
def test_only_a_terminal_that_can_be_drawn_on_is_used(
    terminal: Pty, monkeypatch: pytest.MonkeyPatch, kind: str | None, drawn: bool
) -> None:
    if kind is None:
        monkeypatch.delenv("TERM", raising=False)
    else:
        monkeypatch.setenv("TERM", kind)
    assert progress_canvas.here() is None, "here stderr is no terminal"
    with open(terminal.descriptor, "w", closefd=False) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        assert isinstance(progress_canvas.here(), progress_canvas.Terminal) is drawn
        monkeypatch.undo()
    monkeypatch.setattr(sys, "stderr", None)
    assert progress_canvas.here() is None
