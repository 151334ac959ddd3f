"""Each rule finds what is wrong with a program or a log, and is silent about healthy ones."""

from pathlib import Path

import pytest

from bench.doctor import CORPUS, MACHINE, ROOT, Score, expectations, healthy, own_scores, rules_in
from sublet.doctor.reading import check_log, check_script
from sublet.doctor.rules import all_rules

SICK, LOGS = expectations()


@pytest.mark.parametrize("name", SICK)
def test_a_sick_program_is_told_what_is_wrong_with_it(name: str) -> None:
    path = CORPUS / "sick" / name
    assert sorted(rules_in(path, path.read_text())) == SICK[name]["rules"]


@pytest.mark.parametrize("name", LOGS)
def test_a_log_is_understood(name: str) -> None:
    found = check_log(name, (CORPUS / "logs" / name).read_text())
    assert sorted(one.rule for one in found) == LOGS[name]
    assert all("…" not in one.sentence for one in found)


@pytest.mark.parametrize("path", healthy(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_healthy_program_is_told_nothing(path: Path) -> None:
    text = path.read_text()
    assert [one for one in check_script(str(path), text, MACHINE) if one.counts] == []


def test_every_file_of_the_corpus_is_expected_to_be_something() -> None:
    assert {path.name for path in (CORPUS / "sick").iterdir()} == set(SICK)
    assert {path.name for path in (CORPUS / "logs").iterdir()} == set(LOGS)
    assert len(SICK) + len(LOGS) >= 30
    assert len(healthy()) >= 60


def test_every_rule_for_code_and_logs_has_a_case() -> None:
    cases = {rule for entry in SICK.values() for rule in entry["rules"]}  # type: ignore[attr-defined]
    cases |= {rule for rules in LOGS.values() for rule in rules}
    of_machines = {rule.id for rule in all_rules() if not rule.log and rule.code is None}
    assert cases - {"syntax-error"} == {rule.id for rule in all_rules()} - of_machines


def test_the_scores_of_this_repository_reach_the_bars() -> None:
    assert all(score.good for score in own_scores())


def test_a_score_counts_what_is_wrong_and_what_is_missed() -> None:
    score = Score("some")
    score.add("a.py", ["x", "y"], ["x", "z"])
    score.add("b.py", [], [])
    assert (score.precision, score.recall, score.files) == (0.5, 0.5, 2)
    assert score.wrong == [("a.py", "y")]
    assert score.missed == [("a.py", "z")]
    assert not score.good
