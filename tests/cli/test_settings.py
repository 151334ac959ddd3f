"""Options that are set in files and variables."""

import importlib
import json
import os
from pathlib import Path

import click
import pytest

from sublet import cli
from sublet.cli import settings
from sublet.cli.run import command as run_command
from sublet.cli.submit import command as submit_command
from sublet.cli.verbs import through_click
from sublet.errors import BadRequest


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory, with no other settings than those that a test makes."""
    for name in list(os.environ):
        if name.startswith("SUBLET_") and name != "SUBLET_HOME":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    inner = tmp_path / "project" / "src"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    return inner.parent


def write(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


def users(project: Path, text: str) -> str:
    place = project.parent / "config" / "sublet"
    place.mkdir(parents=True, exist_ok=True)
    return write(place / "config.toml", text)


def test_what_is_nearest_counts(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = users(project, 'memory = "1GiB"\ncpus = 2\non-oom = "grow"\n[submit]\ntime = "2h"\n')
    own = write(
        project / "pyproject.toml",
        '[tool.sublet]\nmemory = "2GiB"\ntime = "1h"\n[tool.sublet.submit]\non_oom = "split"\n',
    )
    monkeypatch.setenv("SUBLET_DEVICE", "cpu")
    assert settings.settings("submit") == {
        "memory": ("2GiB", own),
        "device": ("cpu", "SUBLET_DEVICE"),
        "cpus": ("2", user),
        "on_oom": ("split", own),
        "time": ("1h", own),
    }
    assert "time" not in settings.values("run")
    assert settings.values("run")["on_oom"] == "grow"
    monkeypatch.setenv("SUBLET_MEMORY", "3GiB")
    assert settings.values("run")["memory"] == "3GiB"


def test_what_is_typed_comes_first(project: Path) -> None:
    users(project, 'memory = "1GiB"\nquiet = true\n[submit]\npriority = "low"\n')
    with run_command.make_context("run", ["--memory", "2GiB", "train.py"]) as context:
        assert (context.params["memory"], context.params["quiet"]) == ("2GiB", True)
    with submit_command.make_context("submit", ["train.py"]) as context:
        assert (context.params["memory"], context.params["priority"]) == ("1GiB", "low")


def test_the_quick_way_reads_them_too(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    users(project, 'memory = "7 bananas"\n')
    with pytest.raises(BadRequest, match="7 bananas"):
        cli._run(["run", "train.py"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('memroy = "1GiB"', "Did you mean 'memory'"),
        ("cold = 1", "cold = 1 is not true or false"),
        ("memory = true", "memory = True is not a text"),
        ("cpus = 1.5", "cpus = 1.5 is not a number"),
        ("memory = [1]", "is not a text"),
        ("submit = 3", "3 is not a table"),
        ("[serve]\nport = 1", "there is no setting 'serve'"),
        ("memory =", "is not TOML"),
        ("\x00", "is not TOML"),
    ],
)
def test_what_cannot_be_is_said_with_its_file(project: Path, text: str, says: str) -> None:
    path = users(project, text)
    with pytest.raises(BadRequest) as wrong:
        settings.values("submit")
    assert path in wrong.value.message
    assert says in f"{wrong.value.message} {wrong.value.hint}"


def test_bad_variables_are_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBLET_QUIET", "perhaps")
    with pytest.raises(BadRequest, match="SUBLET_QUIET=perhaps"):
        settings.values("run")
    monkeypatch.setenv("SUBLET_QUIET", " ")
    assert settings.values("run") == {}
    monkeypatch.setenv("SUBLET_CONFIG", "nowhere.toml")
    with pytest.raises(BadRequest, match=r"SUBLET_CONFIG names nowhere\.toml"):
        settings.values("run")


def test_a_project_cannot_choose_what_is_run(project: Path) -> None:
    write(project / "pyproject.toml", '[tool.sublet.run]\npython = "./python"\n')
    with pytest.raises(BadRequest, match="which a project cannot"):
        settings.values("run")


def test_a_file_without_settings_is_passed(project: Path) -> None:
    """The nearest one that has some counts."""
    outer = write(project / "pyproject.toml", "[tool.sublet]\nquiet = true\n")
    write(project / "src" / "pyproject.toml", "[project]\nname = 'x'\n")
    assert settings.settings("run") == {"quiet": (True, outer)}


def test_config_shows_where_values_come_from(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    user = users(project, 'memory = "1GiB"\n')
    assert through_click(["config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["setting", "value", "from"]
    assert lines[1].split() == ["memory", "1GiB", user]
    assert "on-oom          fail   default" in lines
    assert through_click(["config", "submit", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["files"] == {"user": user, "project": None}
    rows = {row["name"]: row for row in document["settings"]}
    assert rows["memory"] == {"name": "memory", "value": "1GiB", "from": user}
    assert rows["gpus"] == {"name": "gpus", "value": None, "from": "default"}


def test_every_setting_is_an_option_of_its_command() -> None:
    for verb, names in settings.VERBS.items():
        command: click.Command = importlib.import_module(f"sublet.cli.{verb}").command
        assert set(names) <= {one.name for one in command.params}
