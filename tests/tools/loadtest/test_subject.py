"""Which model a word on the command line means."""

from pathlib import Path

import pytest

from sublet.errors import BadRequest
from sublet.tools.loadtest.subject import LocalModel, locate


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for version in ("2", "10"):
        (tmp_path / "a" / version).mkdir(parents=True)
        (tmp_path / "a" / version / "saved_model.pb").touch()
    (tmp_path / "b.keras").touch()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("models")
def test_the_newest_version_is_meant_unless_one_is_named() -> None:
    assert locate("a", None) == LocalModel(Path("a/10"), 10)
    assert locate("a", 2) == LocalModel(Path("a/2"), 2)
    assert locate("a/2", None) == LocalModel(Path("a/2"), 2)
    assert locate("b.keras", None) == LocalModel(Path("b.keras"), 1)


@pytest.mark.usefixtures("models")
def test_a_version_on_the_disk_knows_the_name_of_its_model() -> None:
    found = [locate(word, None) for word in ("a", "a/2", "b.keras")]
    assert [one.name for one in found if one is not None] == ["a", "a", "b"]


@pytest.mark.usefixtures("models")
def test_a_word_that_is_no_path_may_be_the_name_of_a_served_model() -> None:
    assert locate("resnet", None) is None
    assert locate("empty", None) is None


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("word", "version", "answer"),
    [
        ("a", 3, "a has no version 3. It has: 2, 10."),
        ("a/2", 3, "a/2 is version 2, not 3."),
        ("./missing", None, "./missing: there is no such file or directory."),
        ("missing.keras", None, "missing.keras: there is no such file or directory."),
        ("./empty", None, "./empty: it is no model. Name a SavedModel"),
    ],
)
def test_a_path_without_the_model_is_refused(word: str, version: int | None, answer: str) -> None:
    with pytest.raises(BadRequest) as refused:
        locate(word, version)
    assert answer in str(refused.value)
