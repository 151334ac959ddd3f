"""What is found on the disk."""

import os
from pathlib import Path
from typing import Any

import pytest

from sublet.errors import ServingError
from sublet.serving.control.model_directories import look, size, survey


def saved(path: Path, content: bytes = b"graph") -> Path:
    """Something that looks like a SavedModel."""
    path.mkdir(parents=True)
    (path / "saved_model.pb").write_bytes(content)
    return path


def test_only_directories_named_by_whole_numbers_are_versions(tmp_path: Path) -> None:
    for name in ("1", "0042", "3.tmp", "-5", "x7", "1e3"):
        saved(tmp_path / name)
    (tmp_path / "9").write_text("a file")
    saved(tmp_path / "99999999999999999999")
    assert {n: Path(one.path).name for n, one in look(str(tmp_path)).items()} == {
        1: "1",
        42: "0042",
    }


def test_a_single_model_is_version_1(tmp_path: Path) -> None:
    (tmp_path / "m.keras").write_bytes(b"zip")
    assert look(str(tmp_path / "m.keras"))[1].path == str(tmp_path / "m.keras")
    assert look(str(saved(tmp_path / "direct")))[1].path == str(tmp_path / "direct")


def test_a_single_version_keeps_its_number(tmp_path: Path) -> None:
    assert list(look(str(saved(tmp_path / "m" / "0042")))) == [42]


def test_a_version_may_hold_a_keras_file(tmp_path: Path) -> None:
    (tmp_path / "4").mkdir()
    (tmp_path / "4" / "net.keras").write_bytes(b"zip")
    assert look(str(tmp_path))[4].path == str(tmp_path / "4" / "net.keras")


def test_a_path_that_is_gone_is_an_error_and_no_empty_answer(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="Could not find base path"):
        look(str(tmp_path / "gone"))


def test_the_mark_of_a_version_changes_with_its_files(tmp_path: Path) -> None:
    saved(tmp_path / "1")
    before = look(str(tmp_path))[1]
    assert look(str(tmp_path))[1] == before
    (tmp_path / "1" / "variables").mkdir()
    (tmp_path / "1" / "variables" / "variables.index").write_bytes(b"index")
    assert look(str(tmp_path))[1].mark != before.mark


def test_a_directory_of_models_is_surveyed_by_name(tmp_path: Path) -> None:
    saved(tmp_path / "versioned" / "1")
    saved(tmp_path / "single")
    (tmp_path / "keras.keras").write_bytes(b"zip")
    saved(tmp_path / ".hidden" / "1")
    saved(tmp_path / "copying.tmp" / "1")
    (tmp_path / "notes").mkdir()
    (tmp_path / "README.md").write_text("no model")
    assert sorted(survey(str(tmp_path))) == ["keras", "single", "versioned"]


def test_the_size_of_a_version_is_that_of_its_files(tmp_path: Path) -> None:
    version = saved(tmp_path / "1", b"x" * 1000)
    (version / "dangling").symlink_to(tmp_path / "nowhere")
    assert size(str(version)) == 1000


def test_what_cannot_be_read_is_no_model_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a directory of another user. (Root may read all, so the system is made to refuse.)"""
    saved(tmp_path / "closed" / "1")
    saved(tmp_path / "open" / "1")
    stat = os.stat

    def refuse(path: Any, *args: Any, **options: Any) -> os.stat_result:
        if "closed/" in str(path):
            raise PermissionError(13, "Permission denied")
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", refuse)
    assert list(survey(str(tmp_path))) == ["open"]
    assert look(str(tmp_path / "closed")) == {}
