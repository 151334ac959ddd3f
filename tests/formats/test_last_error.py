"""The exception that ends a program, as it is left for the broker."""

import json
import os
from pathlib import Path

import pytest

from sublet.formats import last_error
from sublet.formats.last_error import LastError


def raised(code: str) -> BaseException:
    try:
        exec(compile(code, "train.py", "exec"), {})
    except BaseException as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        return error
    raise AssertionError


def test_class_message_and_line_of_the_script_are_kept(tmp_path: Path) -> None:
    code = "import json\ndef f():\n    json.loads('{')\nf()\n"
    last_error.write(str(tmp_path), raised(code))
    found = last_error.read(str(tmp_path))
    assert found is not None
    assert found.text.startswith("JSONDecodeError: Expecting property name")
    assert (found.file, found.line) == ("train.py", 3)


def test_a_long_message_is_cut_and_one_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    last_error.write(str(tmp_path), ValueError("x" * 10_000))
    found = last_error.read(str(tmp_path))
    assert found is not None
    assert len(found.text) == 2000

    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    last_error.write(str(tmp_path / "none"), Mute())
    assert last_error.read(str(tmp_path / "none")) is None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BrokenPipeError()])
def test_an_end_that_is_no_fault_is_not_noted(tmp_path: Path, error: BaseException) -> None:
    last_error.write(str(tmp_path), error)
    assert last_error.read(str(tmp_path)) is None


@pytest.mark.parametrize(
    "record", ["", "[]", "{}", '{"text": 3, "file": ""}', '{"text": "x", "file": null}']
)
def test_a_record_that_makes_no_sense_counts_as_none(tmp_path: Path, record: str) -> None:
    (tmp_path / "error-1.json").write_text(record)
    assert last_error.read(str(tmp_path)) is None


@pytest.mark.parametrize("line", [0, -1, "3", True, 1 << 40, None])
def test_a_line_that_makes_no_sense_is_left_out(tmp_path: Path, line: object) -> None:
    record = {"text": "x", "file": "y", "line": line}
    (tmp_path / "error-1.json").write_text(json.dumps(record))
    assert last_error.read(str(tmp_path)) == LastError("x", "y", None)


def test_of_several_processes_the_last_one_counts(tmp_path: Path) -> None:
    for age, name in ((5, "first"), (1, "last"), (3, "middle")):
        path = tmp_path / f"error-{age}.json"
        path.write_text(json.dumps({"text": name, "file": "", "line": 1}))
        os.utime(path, (1000 - age, 1000 - age))
    found = last_error.read(str(tmp_path))
    assert found is not None
    assert found.text == "last"
