"""What is said at the end of a program that failed, and when nothing is."""

from pathlib import Path
from typing import Any

import pytest

from sublet.doctor.failure import explain
from sublet.domain.job import Outcome, UncaughtError

SICK = Path(__file__).parent / "corpus" / "sick"
LATE = "RuntimeError: Intra op parallelism cannot be modified after initialization."


def failed(text: str = "", code: int = 1, cause: Any = "exited", **fields: Any) -> Outcome:
    error = UncaughtError(text, "/home/me/train.py", fields.pop("line", 4)) if text else None
    return Outcome(cause, code, error=error, **fields)


def test_the_script_says_it_in_its_own_words() -> None:
    script = str(SICK / "threads_after_start.py")
    (found,) = explain(failed(LATE), script)
    assert (found.rule, found.file, found.line) == ("settings-after-start", script, 4)
    assert "(line 3)" in found.sentence


@pytest.mark.parametrize("script", ["", "/nowhere/train.py", str(SICK / "session.py")])
def test_without_such_a_script_the_exception_says_it(script: str) -> None:
    (found,) = explain(failed(LATE), script)
    assert (found.rule, found.place) == ("settings-after-start", "/home/me/train.py:4")


def test_an_abort_is_explained_by_what_aborts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    aborted = failed(code=134, cause="signalled")
    for ended in (aborted, failed()):
        (found,) = explain(ended, str(SICK / "xla_flag.py"))
        assert found.rule == "xla-flags-unknown"
    assert explain(aborted, str(SICK / "traced_numbers.py")) == []
    monkeypatch.setenv("XLA_FLAGS", "--bananas")
    (found,) = explain(aborted, "")
    assert "--bananas" in found.sentence


@pytest.mark.parametrize(
    "outcome",
    [
        failed("ValueError: my own mistake"),
        failed("oneDNN custom operations are on"),
        failed(),
        failed(LATE, by_user=True),
        failed(LATE, code=0),
        failed(LATE, cause="lease exceeded"),
        failed(LATE, cause="cancelled"),
        failed(code=139, cause="signalled"),
    ],
)
def test_nothing_is_said_where_nothing_is_known_or_all_is_said(outcome: Outcome) -> None:
    assert explain(outcome, str(SICK / "threads_after_start.py")) == []
