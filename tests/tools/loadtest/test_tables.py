"""What is shown of figures, and the words of the commands."""

import csv
import io
from xml.etree import ElementTree

import pytest

from sublet.cli.load_options import steps, wanted
from sublet.errors import BadRequest
from sublet.tools.loadtest import tables
from sublet.tools.loadtest.drawing import draw
from sublet.tools.loadtest.figures import Call, Figures, Window, figures


def several(scale: float = 1.0, answer: bool = True) -> list[Figures]:
    call = Call(scale, 0.3 * scale, 0.5 * scale, 32 if answer else 0)
    windows = [Window(40 * scale / 2, [call] * 40)]
    return [
        figures(2**step, 1000, windows, 3, step % 2 == 0, "The queue is full. " * 9)
        for step in range(6)
    ]


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 900.0])
def test_the_table_fits_a_terminal_however_fast_or_slow_a_model_is(scale: float) -> None:
    shown = several(scale)
    lines = [tables.head(), *map(tables.row, shown), tables.bars(shown), *tables.legend(shown)]
    assert max(len(line) for text in lines for line in text.splitlines()) <= 80
    assert len({len(tables.row(one)) for one in shown}) == 1


def test_what_is_not_stable_and_what_failed_is_said() -> None:
    answer = "\n".join(tables.legend(several()))
    assert "~ not stable" in answer
    assert "18 calls failed, and count only here: The queue is full." in answer
    assert tables.row(several()[1]).split()[0] == "2~"


def test_a_way_that_tells_less_has_dashes_and_no_split() -> None:
    shown = several(answer=False)
    assert tables.row(shown[0]).split()[-3:] == ["-", "-", "-"]
    assert "mean time of a call" not in tables.bars(shown)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0000004, "0 µs"),
        (0.000999, "999 µs"),
        (0.0009999, "1.00 ms"),
        (0.01234, "12.3 ms"),
        (0.9999, "1.00 s"),
        (123.4, "123 s"),
    ],
)
def test_times_have_three_digits_and_the_unit_that_fits(seconds: float, text: str) -> None:
    assert tables.span(seconds) == text


def test_the_sheet_has_a_row_for_each_step_and_times_in_milliseconds() -> None:
    rows = list(csv.DictReader(io.StringIO(tables.sheet(several()))))
    assert [row["concurrency"] for row in rows] == ["1", "2", "4", "8", "16", "32"]
    assert float(rows[0]["p99_ms"]) == pytest.approx(1000)
    assert (rows[0]["stable"], rows[1]["stable"]) == ("true", "false")
    assert next(csv.DictReader(io.StringIO(tables.sheet(several(answer=False)))))["queue_ms"] == ""


@pytest.mark.parametrize("count", [1, 6])
def test_the_plot_is_well_formed_and_has_throughput_and_three_latencies(count: int) -> None:
    root = ElementTree.fromstring(draw(several()[:count], "a < b & c"))
    words = {element.text for element in root.iter() if element.text}
    assert {"a < b & c", "p50", "p95", "p99"} <= words
    assert len([element for element in root.iter() if element.tag.endswith("polyline")]) == 4


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("8", (8,)),
        ("1:32", (1, 2, 4, 8, 16, 32)),
        ("3:20", (3, 6, 12, 20)),
        ("1:10:4", (1, 5, 9)),
        ("20,1,5", (1, 5, 20)),
        ("4:4", (4,)),
    ],
)
def test_steps_double_unless_a_stride_is_given(text: str, numbers: tuple[int, ...]) -> None:
    assert steps(text) == numbers


@pytest.mark.parametrize("text", ["", "x", "1:", "9:1", "1:9:0", "1:2:3:4", "0:4", "-1", "1:9999"])
def test_steps_that_make_no_sense_are_told_what_to_write(text: str) -> None:
    with pytest.raises(BadRequest, match=r"Write 8, 1:32|From 1 to 4096"):
        steps(text)


def test_shapes_are_read_and_an_input_may_have_an_equals_sign_in_its_name() -> None:
    answer = wanted(None, ("x=1,784", "a=b=2", "scalar="), None, None)
    assert answer.shapes == {"x": (1, 784), "a=b": (2,), "scalar": ()}
    for text in ("x", "=1", "x=1,,2", "x=-1", "x=1.5"):
        with pytest.raises(BadRequest, match="such as --shape x=1,784"):
            wanted(None, (text,), None, None)
