"""Public programs: the list, notebooks as scripts, and files from a local copy of a repository."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from bench.corpus import Program, programs, sources
from bench.corpus.notebooks import script


def test_every_program_of_the_list_has_a_name_of_its_own_and_a_whole_commit() -> None:
    found = programs()
    assert len({program.name for program in found}) == len(found) >= 60
    assert all(re.fullmatch("[0-9a-f]{40}", program.commit) for program in found)


def test_a_notebook_becomes_a_script_without_magics() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# A title"]},
        {
            "cell_type": "code",
            "source": ["!pip install x\n", "if True:\n", "    %matplotlib inline"],
        },
        {"cell_type": "code", "source": ["%%time\n", "x = 1\n", "print(x)"]},
        {"cell_type": "code", "source": ["%%bash\n", "rm file"]},
    ]
    made = script(json.dumps({"cells": cells}))
    assert made.split("\n") == [
        *("pass", "if True:", "    pass", ""),
        *("", "x = 1", "print(x)", ""),  # Lines keep their places.
        *("", "", ""),
    ]
    compile(made, "made", "exec")


def test_a_program_is_brought_with_the_text_files_beside_it(tmp_path: Path) -> None:
    commit = _repository(tmp_path / "copies" / "owner+name")
    program = Program("owner/name", commit, "demo/main.py")
    made = sources.bring(program, tmp_path / "copies", tmp_path / "into")
    assert made == tmp_path / "into" / "main.py"
    assert sorted(path.name for path in made.parent.iterdir()) == ["helper.py", "main.py"]


def test_a_program_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    commit = _repository(tmp_path / "copies" / "owner+name")
    with pytest.raises(sources.Missing, match=r"no demo/other\.py"):
        sources.bring(
            Program("owner/name", commit, "demo/other.py"), tmp_path / "copies", tmp_path / "into"
        )


def _repository(path: Path) -> str:
    """A repository with a folder of two scripts and a picture; its commit."""
    (path / "demo").mkdir(parents=True)
    for name in ("main.py", "helper.py", "picture.png"):
        (path / "demo" / name).write_text("pass\n")
    names = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], [*names, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *words], cwd=path, check=True)
    answer = subprocess.run(["git", "rev-parse", "HEAD"], cwd=path, check=True, capture_output=True)
    return answer.stdout.decode().strip()
