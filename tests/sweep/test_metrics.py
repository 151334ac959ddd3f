"""What is read of a program's metrics, and how its parameters are written."""

import json
from pathlib import Path

import pytest

from sublet.cli.sweep import values_of
from sublet.errors import BadRequest
from sublet.sweeps.command import arguments
from sublet.sweeps.metrics import Printed, in_file
from sublet.sweeps.space import RandInt, Uniform
from support import event_files as made


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("val_loss: 0.125", 0.125),
        ("val_loss=1e-3", 0.001),
        ("64/64 - 0s - loss: 0.5 - val_acc: 0.9 - val_loss: 0.25", 0.25),
        ("\x1b[1m64/64\x1b[0m \x1b[32m━━\x1b[0m loss: 0.5 - val_loss: 0.75", 0.75),
        ('{"epoch": 1, "val_loss": 0.5}', 0.5),
        ("val_loss: nan", None),
        ("best val_loss: 2, then val_loss: 3", 3.0),
    ],
)
def test_a_line_that_names_the_metric_tells_its_value(line: str, value: float | None) -> None:
    assert Printed("val_loss").of(line) == {"val_loss": value}


@pytest.mark.parametrize("line", ["", "val_loss", "my_val_loss: 1", "val_loss: high", "loss: 0.5"])
def test_other_lines_tell_nothing(line: str) -> None:
    assert Printed("val_loss").of(line) is None


def test_files_of_json_and_csv_are_read_whatever_their_form(tmp_path: Path) -> None:
    rows = [{"val_loss": 2.0, "note": "x"}, {"val_loss": 1.0}]
    written = {
        "one.json": json.dumps(rows[1]),
        "list.json": json.dumps(rows),
        "history.json": json.dumps({"val_loss": [2.0, 1.0]}),
        "lines.jsonl": "\n".join(map(json.dumps, rows)) + '\n{"val_lo',
        "log.csv": "epoch,val_loss\n0,2.0\n1,1.0\n",
    }
    for name, text in written.items():
        (tmp_path / name).write_text(text)
        values = [logs["val_loss"] for logs in in_file(tmp_path / name, "val_loss")]
        assert values == ([1.0] if name == "one.json" else [2.0, 1.0]), name
    (tmp_path / "torn.json").write_text('{"val_loss": ')
    for name in ("torn.json", "nothing.json"):
        assert in_file(tmp_path / name, "val_loss") == []


def test_scalars_of_tensorboard_are_read_by_keras_names(tmp_path: Path) -> None:
    for run, value in (("train", 9.0), ("validation", 0.5)):
        (tmp_path / run).mkdir()
        late, early = made.tensor("epoch_loss", value / 2), made.simple("epoch_loss", value)
        file = made.file(made.event(1, late), made.event(0, early))
        (tmp_path / run / "events.out.tfevents.1.host").write_bytes(file)
    assert in_file(tmp_path, "val_loss") == [{"val_loss": 0.5}, {"val_loss": 0.25}]
    assert in_file(tmp_path, "loss") == [{"loss": 9.0}, {"loss": 4.5}]


def test_parameters_stand_where_they_are_named_or_at_the_end() -> None:
    words = ["run", "lr={lr}", "--out={dir}/{trial}"]
    params = {"lr": 0.1, "units": 8, "k": "x"}
    assert arguments(words, params, 7, Path("/d")) == [
        "run",
        "lr=0.1",
        "--out=/d/7",
        "--units",
        "8",
        "-k",
        "x",
    ]


def test_values_are_read_as_they_are_typed() -> None:
    assert values_of("0.1,adam,3") == [0.1, "adam", 3]
    assert values_of("0-4") == range(5)
    assert values_of("log:1e-4..1e-1") == Uniform(1e-4, 1e-1, log=True)
    assert values_of("0..1.5") == Uniform(0.0, 1.5)
    assert values_of("8..64") == RandInt(8, 64)
    assert values_of("a-b") == ["a-b"]
    for wrong in ("4-0", "1..-1", "e..e"):
        with pytest.raises(BadRequest):
            values_of(wrong)
