"""Output becomes lines that are safe to show, wherever it is cut."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.client.log_lines import shown_line
from sublet.page import log_text
from sublet.page.log_text import LogPiece, read_piece

_UNSEEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}


def read_all(logs: Path, position: int | None = 0) -> list[LogPiece]:
    pieces = []
    more = True
    while more:
        piece = read_piece(logs, 1, 1, "both", position)
        assert piece is not None
        pieces.append(piece)
        position, more = piece.position, piece.more
    return pieces


@given(st.binary(max_size=300))
def test_nothing_unseen_is_in_a_line(data: bytes) -> None:
    text = shown_line(data)
    assert not [one for one in text if unicodedata.category(one) in _UNSEEN]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"plain", "plain"),
        (b"\x1b[31;1mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07text", "text"),
        (b"10%\r20%\r30%", "30%"),
        (b"dos\r", "dos"),
        (b"a\tb", "a       b"),
        ("a\u202eb".encode(), "a\ufffdb"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"<script>alert(1)</script>", "<script>alert(1)</script>"),
    ],
)
def test_a_line_is_shown_as_a_terminal_would_leave_it(written: bytes, shown: str) -> None:
    assert shown_line(written) == shown


def test_a_line_of_a_megabyte_is_cut() -> None:
    text = shown_line(b"x" * (1 << 20))
    assert len(text) < 5000
    assert text.endswith("(longer)")


def test_pieces_together_are_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_text, "_MOST", 1000)
    lines = [f"line {number}" for number in range(100_000)]
    (tmp_path / "1.1.log").write_text("\n".join(lines))
    pieces = read_all(tmp_path)
    assert len(pieces) > 2
    assert [line for piece in pieces for line in piece.lines] == lines[:-1]
    assert pieces[-1].open_line == lines[-1]


def test_a_line_without_an_end_comes_again_when_it_has_grown(tmp_path: Path) -> None:
    path = tmp_path / "1.1.log"
    path.write_bytes(b"first\nsec")
    piece = read_piece(tmp_path, 1, 1, "both", None)
    assert piece is not None
    assert (piece.lines, piece.open_line) == (("first",), "sec")
    with path.open("ab") as file:
        file.write(b"ond\n")
    after = read_piece(tmp_path, 1, 1, "both", piece.position)
    assert after is not None
    assert (after.lines, after.open_line) == (("second",), "")


def test_of_a_long_log_the_last_lines_come_first(tmp_path: Path) -> None:
    (tmp_path / "1.1.log").write_text("".join(f"{number}\n" for number in range(2000)))
    piece = read_piece(tmp_path, 1, 1, "both", None)
    assert piece is not None
    assert piece.lines[0] == "1500"
    assert piece.lines[-1] == "1999"


def test_an_attempt_without_output_has_none(tmp_path: Path) -> None:
    assert read_piece(tmp_path, 1, 1, "both", None) is None
    assert read_piece(tmp_path, 1, 1, "stderr", 0) is None
