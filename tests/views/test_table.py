"""Tables fit the terminal, and cut nothing that people copy."""

import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from sublet.views.table import UNBOUNDED, Column, cut, lay_out, to_html, width_of

COLUMNS = (
    Column("job", right=True),
    Column("name", least=8),
    Column("lease", right=True),
    Column("pid", right=True, rank=1),
    Column("note", rank=2, least=10),
)
texts = st.text(st.characters(categories=["Lu", "Ll", "Lo", "Nd", "Zs"]), max_size=40)
rows = st.tuples(
    st.integers(1, 10**6).map("#{}".format),
    texts,
    st.sampled_from(["1.0 GiB", "512 MiB", "-"]),
    st.integers(1, 10**6).map(str),
    texts,
)


@given(st.lists(rows | st.tuples(st.just("#1"), texts, texts), max_size=5), st.integers(40, 200))
@example([("#1", "0" * 18 + "\u3000" * 4, "0" * 8)], 40)
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(
    table: list[tuple[str, ...]], width: int
) -> None:
    lines = lay_out(COLUMNS, table, width)
    assert len(lines) == len(table) + 1
    for row, line in zip(table, lines[1:], strict=True):
        assert cell_len(line) <= width
        assert row[0] in line
        if len(row) == len(COLUMNS):
            assert row[2] in line


def test_the_column_of_the_highest_rank_goes_first() -> None:
    row = ("#1", "train.py", "1.0 GiB", "4711", "grew from 512 MiB")
    assert lay_out(COLUMNS, [row], 80)[0].split() == ["job", "name", "lease", "pid", "note"]
    assert lay_out(COLUMNS, [row], 36)[0].split() == ["job", "name", "lease", "pid"]
    assert lay_out(COLUMNS, [row], 24)[0].split() == ["job", "name", "lease"]


def test_a_column_without_entries_is_not_shown() -> None:
    assert lay_out(COLUMNS, [("#1", "a", "1 B", "", "")], 80)[0].split() == ["job", "name", "lease"]


def test_a_cut_text_shows_that_it_was_cut() -> None:
    assert cut("a long name", 6) == "a lon…"
    assert cut("a long name", 11) == "a long name"
    assert cell_len(cut("漢字漢字", 4)) <= 4


def test_what_goes_to_a_file_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert width_of(io.StringIO()) == UNBOUNDED
    monkeypatch.setenv("COLUMNS", "90")
    assert width_of(io.StringIO()) == 90


def test_html_shows_names_as_text() -> None:
    page = to_html(COLUMNS, [("#1", "<script>", "1 B", "7", ""), ("#2", "b", "waits & waits")])
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert '<td style="text-align:right" colspan="3">waits &amp; waits</td>' in page
