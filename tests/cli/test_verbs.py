"""What is said to somebody who has mistaken a word."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sublet.cli import complain
from sublet.cli.terminal_text import print_json
from sublet.cli.verbs import VERBS, cli, through_click
from sublet.errors import BadRequest


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("sttus", "Did you mean `sublet status`?"),
        ("log", "Did you mean `sublet logs`?"),
        ("train.py", "A program is run with `sublet run train.py`."),
        ("./program", "A program is run with `sublet run ./program`."),
        ("kill", "Use `sublet cancel`."),
        ("list", "Use `sublet ps`."),
        ("xyzzy", "Run `sublet --help` to list commands."),
    ],
)
def test_a_wrong_word_gets_the_right_one(
    word: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("program").touch()
    with pytest.raises(BadRequest, match=f"There is no command '{word}'") as refusal:
        cli([word, "--epochs", "3"], standalone_mode=False)
    assert refusal.value.hint == hint


@pytest.mark.parametrize(
    ("words", "said"),
    [(["version"], "sublet, version"), (["help", "ps"], "List running"), (["help"], "Commands:")],
)
def test_help_and_version_are_commands_too(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert through_click(words) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("words", [["run", "--memry", "2GiB", "x"], ["logs"], ["ps", "--bananas"]])
def test_every_mistake_is_answered_in_one_style(words: list[str]) -> None:
    with pytest.raises(BadRequest) as refusal:
        through_click(words)
    assert refusal.value.hint == f"See `sublet {words[0]} --help`."


@pytest.mark.parametrize("encoding", ["ascii", "iso8859-1", "utf-8"])
def test_signs_that_an_encoding_lacks_are_replaced(encoding: str) -> None:
    script = "import sys; from sublet import cli; cli.write_signs_as_ascii(); print('█▒…é→')"
    environ = os.environ | {"PYTHONIOENCODING": encoding}
    answer = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True)
    said = {"ascii": "#=~?>", "iso8859-1": "#=~é>", "utf-8": "█▒…é→"}[encoding]
    assert answer.stdout.decode(encoding) == said + "\n"


def test_a_shell_that_completes_a_wrong_word_is_told_nothing() -> None:
    with cli.make_context("sublet", ["xyzzy", "1"], resilient_parsing=True) as context:
        assert cli.resolve_command(context, ["xyzzy", "1"])[1] is None
    assert set(VERBS) == set(cli.list_commands(context))


def test_a_long_complaint_is_folded_for_people_and_whole_for_programs() -> None:
    error = BadRequest("It has 4.0 GiB, " * 12 + "and no more.", "Ask for less.\nOr wait.")
    people, programs = Screen(), io.StringIO()
    complain(error, people)
    complain(error, programs)
    assert max(map(len, people.getvalue().splitlines())) <= 80
    assert people.getvalue().split() == programs.getvalue().split()
    first, *hint = programs.getvalue().splitlines()
    assert first == f"sublet: {error.message}"
    assert hint == ["        Ask for less.", "        Or wait."]


def test_json_has_the_words_of_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(
        {"type": "x", "devices": [{"strangers": 1, "standing": 2}], "jobs": [{"run": "3.1"}]}
    )
    assert json.loads(capsys.readouterr().out) == {
        "schema": 1,
        "devices": [{"others": 1, "nursery": 2}],
        "jobs": [{"attempt_id": "3.1"}],
    }


def test_the_list_of_commands_is_shown_without_loading_them() -> None:
    script = (
        "import sys; from sublet.cli.verbs import through_click; through_click(['--help']); "
        "print([name for name in sys.modules if name.startswith('sublet.cli.')])"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    *listed, loaded = answer.stdout.splitlines()
    assert loaded == "['sublet.cli.verbs']"
    assert all(any(line.split()[:1] == [verb] for line in listed) for verb in VERBS)


def test_every_command_can_be_loaded_and_explains_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for verb in VERBS:
        assert through_click([verb, "--help"]) == 0
        assert f"sublet {verb}" in capsys.readouterr().out
