"""The page's table is made from the rules: `python tests/doctor/test_page.py` writes it."""

from pathlib import Path

from sublet.doctor.rule import Rule
from sublet.doctor.rules import all_rules

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"
MARK = "<!-- Made from the rules: tests/doctor/test_page.py says how. -->\n"


def table() -> str:
    """All rules with what they read, worst first."""
    rows = ["| rule | seen in | what is wrong | fix |", "| --- | --- | --- | --- |"]
    for severity in ("error", "warning", "note"):
        for rule in all_rules():
            if rule.severity == severity:
                sentence, fix = (text.replace("|", "\\|") for text in rule.say(()))
                rows.append(f"| `{rule.id}` ({severity}) | {_seen_in(rule)} | {sentence} | {fix} |")
    return "\n".join(rows) + "\n"


def _seen_in(rule: Rule) -> str:
    kinds = ("code", "log", "machine", "broker", "job")
    return ", ".join(kind for kind in kinds if getattr(rule, kind))


def test_the_page_lists_the_rules_as_they_are() -> None:
    assert PAGE.read_text().partition(MARK)[2].strip() == table().strip()


def test_every_rule_is_a_file_of_its_own_name() -> None:
    folder = Path(__file__).parents[2] / "src" / "sublet" / "doctor" / "rules"
    files = {path.stem.replace("_", "-") for path in folder.glob("[!_]*.py")}
    assert [rule.id for rule in all_rules()] == sorted(files)


def test_every_rule_has_a_sentence_a_fix_and_a_check() -> None:
    for rule in all_rules():
        assert rule.sentence.endswith((".", "}")), rule.id
        assert rule.fix, rule.id
        assert _seen_in(rule), rule.id


if __name__ == "__main__":
    before = PAGE.read_text().partition(MARK)[0]
    PAGE.write_text(f"{before}{MARK}\n{table()}")
