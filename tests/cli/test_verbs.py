"""What is said to somebody who has mistaken a word."""

import io
from pathlib import Path

import pytest

from sublet.cli import complain
from sublet.cli.verbs import VERBS, cli
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
        ("xyzzy", "`sublet --help` shows all that there are."),
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
