"""Promises of the tables, the bars and the files."""

import json
from pathlib import Path

import pytest

from bench import machine, report

TABLE = report.Table("walls", ("way", "runs", "median"), (("plain", "3", "2.1 s"),), ("A note.",))


def test_a_table_lines_up_its_columns() -> None:
    """The first column stands left, the others right, under a line of the same width."""
    assert TABLE.render().splitlines() == [
        "walls",
        "",
        "way    runs  median",
        "───────────────────",
        "plain     3   2.1 s",
        "  A note.",
    ]


def test_a_long_first_cell_gives_way_so_that_the_table_fits_a_terminal() -> None:
    """Figures are never cut; names are."""
    table = report.Table("t", ("way", "median"), (("x" * 200, "2.1 s"),), ("word " * 50,))
    lines = table.render().splitlines()
    assert max(map(len, lines)) == 80
    assert lines[4].endswith("…   2.1 s")


def test_figures_that_cannot_fit_are_an_error_and_not_a_cut_number() -> None:
    """Better no table than a wrong one."""
    with pytest.raises(ValueError, match="wider than 80"):
        report.Table("t", ("way", "median"), (("a way", "9" * 79),)).render()


def test_a_row_with_a_cell_too_few_is_refused() -> None:
    """Cells never slide under another column."""
    with pytest.raises(ValueError, match="1 cells under 2"):
        report.Table("t", ("way", "median"), (("plain",),)).render()


@pytest.mark.parametrize(
    ("value", "kind", "met"),
    [(20.0, "at least", True), (19.9, "at least", False), (5.0, "at most", True)],
)
def test_a_bar_is_met_on_its_line_and_on_the_right_side(value: float, kind: str, met: bool) -> None:
    """Both kinds of bar."""
    limit = 20.0 if kind == "at least" else 5.0
    # The parameters are plain text to the checker.
    bar = report.Bar("x", value, limit, kind)  # type: ignore[arg-type]
    assert bar.met is met
    assert ("MISSED" in bar.render()) is not met


def test_a_result_survives_json_with_its_bars_judged(tmp_path: Path) -> None:
    """The file holds what the table shows."""
    result = report.Result(
        "rest", (TABLE,), (report.Bar("b", 3.0, 2.0, "at most", "ms"),), {"walls": [1.0]}
    )
    path = report.write(result.document({"cores": 2}, quick=False), tmp_path)
    answer = json.loads(path.read_text())
    assert path.name == "rest.json"
    assert answer["format"] == report.FORMAT
    assert answer["machine"] == {"cores": 2}
    assert answer["bars"][0]["met"] is False
    assert answer["tables"][0]["rows"] == [["plain", "3", "2.1 s"]]
    assert answer["samples"] == {"walls": [1.0]}


def test_a_quick_result_never_replaces_a_full_one(tmp_path: Path) -> None:
    """They lie side by side."""
    result = report.Result("rest", (TABLE,), (), {})
    full = report.write(result.document({}, quick=False), tmp_path)
    quick = report.write(result.document({}, quick=True), tmp_path)
    assert full != quick
    assert json.loads(full.read_text())["quick"] is False


def test_what_could_not_be_measured_is_shown() -> None:
    """A failure stands under the figures."""
    assert (
        "Ray: exit code 1"
        in report.Result("jobs", (TABLE,), (), {}, ("Ray: exit code 1",)).render()
    )


def test_the_file_never_names_a_directory_of_this_machine() -> None:
    """The last words of a program that failed may well name one."""
    result = report.Result("jobs", (TABLE,), (), {}, ("File '/home/ada/x/job.py', line 3/4",))
    assert result.document({}, quick=False)["failures"] == ["File 'job.py', line 3/4"]


def test_the_machine_facts_name_versions_and_never_the_machine() -> None:
    """Neither its host name nor a path."""
    facts = machine.facts()
    assert facts["cores"] >= 1
    assert facts["tensorflow"]
    assert "/" not in json.dumps(facts)
    assert not {"host", "node", "hostname", "user"} & set(facts)
    assert len(machine.line(facts)) <= 80


def test_a_package_that_is_missing_has_no_version() -> None:
    """Peers are optional."""
    assert machine.version("there-is-no-such-package") is None
