"""The broker's log, written by a process of its own whose stderr it is."""

import json
import re
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from pathlib import Path
from sublet.broker import log
log._LARGEST = 2000
if sys.argv[2] == "json":
    log.use_json(Path(sys.argv[1]))
for number in range(50):
    log.record("counted", {"number": number, "unknown": None})
log.note("two\\nlines")
try:
    1 / 0
except ZeroDivisionError:
    log.note_fault("it broke")
"""


def _written(file: Path, form: str) -> str:
    with file.open("a") as stream:
        words = [sys.executable, "-c", PROGRAM, str(file), form]
        subprocess.run(words, stderr=stream, check=True, timeout=60)
    return file.read_text()


def test_json_is_one_object_in_each_line_of_files_that_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "broker.log"
    text = _written(file, "json")
    before = (tmp_path / "broker.log.1").read_text()
    assert len(before) < 3000
    entries = [json.loads(line) for line in (before + text).splitlines()]
    numbers = [entry["number"] for entry in entries if entry["event"] == "counted"]
    assert numbers == list(range(numbers[0], 50))
    assert "unknown" not in entries[0]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}Z", one["time"]) for one in entries)
    note, fault = entries[-2:]
    assert (note["level"], note["message"]) == ("warning", "two\nlines")
    assert fault["level"] == "error"
    assert "ZeroDivisionError" in fault["traceback"]


def test_the_log_for_people_has_only_what_went_wrong(tmp_path: Path) -> None:
    text = _written(tmp_path / "broker.log", "text")
    assert "counted" not in text
    assert "it broke\nTraceback" in text
