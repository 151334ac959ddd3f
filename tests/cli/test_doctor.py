"""`sublet doctor`: files of all kinds, exit codes, JSON, and text that others wrote."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from sublet.cli.verbs import through_click
from sublet.errors import BadRequest

LATE = """import tensorflow as tf
x = tf.ones([2])
tf.config.threading.set_intra_op_parallelism_threads(1)
"""


@pytest.fixture(autouse=True)
def _in_an_empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBLET_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for name in ("TF_CONFIG", "XLA_FLAGS", "TF_GPU_ALLOCATOR", "TF_FORCE_GPU_ALLOW_GROWTH"):
        monkeypatch.delenv(name, raising=False)


def doctor(*words: str) -> int:
    return through_click(["doctor", *words])


def test_a_script_is_told_what_is_wrong_where_and_the_fix(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("train.py").write_text(LATE)
    assert doctor("train.py") == 1
    said = capsys.readouterr().out
    assert said.startswith("train.py:3: error: ")
    assert "(line 2)" in said
    assert "[settings-after-start]" in said
    assert "| tf.config.threading.set_intra_op_parallelism_threads(1)" in said
    assert "fix: Move it above" in said


def test_a_healthy_script_and_an_empty_one_are_fine(capsys: pytest.CaptureFixture[str]) -> None:
    Path("fine.py").write_text("import tensorflow as tf\nprint(tf.ones([2]))\n")
    Path("empty.py").touch()
    assert doctor("fine.py") == doctor("empty.py") == 0
    assert "nothing is wrong with fine.py" in capsys.readouterr().out


def test_a_notebook_is_read_by_cells(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [{"cell_type": "code", "source": [line]} for line in LATE.splitlines()]
    Path("train.ipynb").write_text(json.dumps({"cells": cells}))
    assert doctor("train.ipynb", "--json") == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["rule"], found["cell"], found["line"]) == ("settings-after-start", 3, 1)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("old.py", "print 'x'\n", "Missing parentheses"),
        ("cut.py", "def f(:\n", "invalid syntax"),
        ("list.ipynb", "[]", "cannot be read"),
        ("torn.ipynb", '{"cells": [', "cannot be read"),
        ("none.ipynb", '{"nbformat": 3}', "it has no cells"),
    ],
)
def test_what_python_cannot_read_is_a_finding(
    name: str, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(name).write_text(text)
    assert doctor(name) == 1
    assert said in capsys.readouterr().out


def test_a_log_is_read_and_so_is_stdin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "fine\n\nRuntimeError: Collective ops must be configured at program startup\n" * 3
    Path("train.log").write_text(text)
    assert doctor("train.log") == 1
    said = capsys.readouterr().out
    assert said.startswith("train.log:3: error: MultiWorkerMirroredStrategy")
    assert "(3 times)" in said

    class Stdin(io.StringIO):
        buffer = io.BytesIO(text.encode())

    monkeypatch.setattr(sys, "stdin", Stdin())
    assert doctor("-") == 1
    assert capsys.readouterr().out.startswith("stdin:3: error:")


def test_notes_are_shown_and_are_no_findings(capsys: pytest.CaptureFixture[str]) -> None:
    Path("err").write_text("I0000 port.cc:153] oneDNN custom operations are on. You may see\n")
    assert doctor("err") == 0
    assert "note: oneDNN" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("gone.py", None, "there is no such file"),
        ("./gone", None, "there is no such file"),
        ("weights.bin", b"\0\1\2", "is no text"),
        ("weights.py", b"\0\1\2", "is no text"),
        (".", None, "cannot be read"),
    ],
)
def test_what_cannot_be_examined_is_said_plainly(
    name: str, content: bytes | None, said: str
) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    with pytest.raises(BadRequest, match=said) as refusal:
        doctor(name)
    assert refusal.value.hint


def test_without_an_argument_the_machine_is_examined(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No broker is started for it."""
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "yes")
    assert doctor("--json") == 1
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["findings"]
    assert "growth-not-parsed" in [one["rule"] for one in found]
    assert not Path("home").exists()


def test_what_others_wrote_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    Path("evil.log").write_text("\x1b[2J\u202eGraph is finalized and cannot be modified.\n")
    Path("\x1b[1m.py").write_text(LATE)
    assert doctor("evil.log") == doctor("\x1b[1m.py") == 1
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\u202e" not in said


def test_a_script_of_any_shape_is_read_in_bounded_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Functions that call each other, deep nesting, and a million steps in loops."""
    calls = "\n".join(f"def f{n}():\n    f{n + 1}(); f{n + 2}(); f{n // 2}()" for n in range(300))
    Path("deep.py").write_text(f"import tensorflow as tf\n{calls}\nf0()\n")
    Path("nested.py").write_text("x = " + "(" * 150 + "1" + ")" * 150 + "\n")
    assert doctor("deep.py") == doctor("nested.py") == 0
    Path("sum.py").write_text(f"import tensorflow as tf\nx = {' + '.join(['1'] * 3000)}\n{LATE}")
    assert doctor("sum.py") == 1
    Path("worse.py").write_text("x = " + "-" * 100_000 + "1\n")
    assert doctor("worse.py") in (0, 1)
    capsys.readouterr()


def test_lines_of_a_long_log_keep_their_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its end is read."""
    monkeypatch.setattr("sublet.doctor.examination._TAIL", 4096)
    monkeypatch.setattr("sublet.doctor.examination._PIECE", 1024)
    text = "x\n" * 20_000 + "RuntimeError: Graph is finalized and cannot be modified.\n"
    Path("long.log").write_text(f"Collective ops must be configured at program startup\n{text}")
    assert doctor("long.log") == 1
    said = capsys.readouterr().out
    assert said.startswith("long.log:20002: error: A function adds")
    assert "strategy-after-start" not in said
