"""What a person sees of what was written to a terminal."""

import re

_PIECE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b([78D])|([\r\n\b])|([^\x1b\r\n\b])", re.DOTALL)


class Screen:
    """Rows of text. Knows the controls that matter for a line at the bottom, and no others."""

    def __init__(self, rows: int = 24, columns: int = 80) -> None:
        self._rows, self._columns = rows, columns
        self._cells = [[" "] * columns for _ in range(rows)]
        self._row = self._column = 0
        self._top, self._bottom = 0, rows - 1
        self._saved = (0, 0)
        self.history: list[str] = []
        """Rows that have left at the top."""

    @property
    def lines(self) -> list[str]:
        """The rows of the screen."""
        return ["".join(row).rstrip() for row in self._cells]

    @property
    def text(self) -> list[str]:
        """All that can be read, scrolled up or not; no empty rows."""
        return [line for line in self.history + self.lines if line]

    @property
    def scrolls_whole(self) -> bool:
        return (self._top, self._bottom) == (0, self._rows - 1)

    def feed(self, written: str) -> "Screen":
        """Take in what was written to the terminal."""
        for options, control, escape, motion, character in _PIECE.findall(written):
            if control:
                self._control(control, options)
            elif escape == "7":
                self._saved = self._row, self._column
            elif escape == "8":
                self._row, self._column = self._saved
            elif escape == "D" or motion == "\n":
                self._go_down()
            elif motion == "\r":
                self._column = 0
            elif motion == "\b":
                self._column = max(0, self._column - 1)
            else:
                self._put(character)
        return self

    def _put(self, character: str) -> None:
        if self._column == self._columns:
            self._column = 0
            self._go_down()
        self._cells[self._row][self._column] = character
        self._column += 1

    def _go_down(self) -> None:
        if self._row != self._bottom:
            self._row = min(self._row + 1, self._rows - 1)
            return
        if self._top == 0:
            self.history.append("".join(self._cells[0]).rstrip())
        del self._cells[self._top]
        self._cells.insert(self._bottom, [" "] * self._columns)

    def _control(self, control: str, options: str) -> None:
        numbers = [int(number) for number in options.split(";") if number.isdigit()]
        if control == "A":
            self._row = max(0, self._row - (numbers or [1])[0])
        elif control == "H":
            row, column = numbers or [1, 1]
            self._row, self._column = row - 1, column - 1
        elif control == "K":
            start = 0 if numbers == [2] else self._column
            self._cells[self._row][start:] = [" "] * (self._columns - start)
        elif control == "r":
            top, bottom = numbers or [1, self._rows]
            self._top, self._bottom = top - 1, bottom - 1
            self._row = self._column = 0
        else:
            assert control in "mhl", f"CSI {options}{control} is not known here"
