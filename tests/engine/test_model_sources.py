"""What is no model, and what is said of it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sublet.channel.codes import Code
from sublet.engine import model_sources
from sublet.errors import ServingError
from support.leased import SAVED_MODELS

GOOD = SAVED_MODELS / "saved_model_half_plus_two_cpu" / "00000123"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A good model, to be spoiled."""
    return Path(shutil.copytree(GOOD, tmp_path / "model" / "00000123"))


def refused(path: Path, **options: object) -> tuple[int, str]:
    with pytest.raises(ServingError) as caught:
        model_sources.kind(str(path), options)
    return caught.value.code, caught.value.message


@pytest.mark.parametrize(
    ("name", "code", "advice"),
    [
        ("bad_half_plus_two", Code.FAILED_PRECONDITION, "export it with tf.saved_model"),
        ("saved_model_half_plus_two_tflite", Code.UNIMPLEMENTED, "--prefer_tflite_model"),
        ("parse_example_tflite", Code.UNIMPLEMENTED, "--prefer_tflite_model"),
    ],
)
def test_other_formats_are_refused_by_their_names(name: str, code: Code, advice: str) -> None:
    found, text = refused(SAVED_MODELS / name / "00000123")
    assert found == code
    assert advice in text


def test_a_directory_of_versions_is_no_model() -> None:
    code, text = refused(SAVED_MODELS / "saved_model_half_plus_two_2_versions")
    assert code == Code.FAILED_PRECONDITION
    assert text.endswith("/00000124")


def _truncate(model: Path) -> None:
    graph = model / "saved_model.pb"
    graph.write_bytes(graph.read_bytes()[:-100])


def _empty(model: Path) -> None:
    (model / "saved_model.pb").write_bytes(b"")


def _rename(model: Path) -> None:
    (model / "saved_model.pb").rename(model / "model.pb")


def _lose_variables(model: Path) -> None:
    shutil.rmtree(model / "variables")


def _clear(model: Path) -> None:
    shutil.rmtree(model)
    model.mkdir()


def _link_out(model: Path) -> None:
    secret = model.parents[1] / "secret"
    secret.write_text("nobody's business")
    (model / "assets" / "foo.txt").unlink()
    (model / "assets" / "foo.txt").symlink_to(secret)


@pytest.mark.parametrize(
    ("spoil", "code", "advice"),
    [
        (_truncate, Code.DATA_LOSS, "Copy or export the model again."),
        (_empty, Code.DATA_LOSS, "Copy or export the model again."),
        (_rename, Code.FAILED_PRECONDITION, "Name it back."),
        (_lose_variables, Code.DATA_LOSS, "Copy the whole directory again"),
        (_clear, Code.FAILED_PRECONDITION, "Export or copy the model into it."),
        (_link_out, Code.PERMISSION_DENIED, "follow_links"),
        (shutil.rmtree, Code.NOT_FOUND, "Check the path."),
    ],
)
def test_a_spoiled_model_is_refused_with_advice(
    copy: Path, spoil: Callable[[Path], None], code: Code, advice: str
) -> None:
    assert model_sources.kind(str(copy), {}) == model_sources.SAVED_MODEL
    spoil(copy)
    found, text = refused(copy)
    assert found == code
    assert advice in text


def test_links_within_a_model_and_those_that_are_allowed_are_followed(copy: Path) -> None:
    other = shutil.copytree(copy, copy.parent / "00000124")
    shutil.rmtree(other / "variables")
    (other / "variables").symlink_to("../00000123/variables")
    assert model_sources.kind(str(other), {}) == model_sources.SAVED_MODEL
    _link_out(copy)
    assert model_sources.kind(str(copy), {"follow_links": True}) == model_sources.SAVED_MODEL


def test_a_file_is_a_keras_model_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.keras").touch()
    (tmp_path / "a.onnx").touch()
    assert model_sources.kind(str(tmp_path / "a.keras"), {}) == model_sources.KERAS
    assert refused(tmp_path / "a.onnx")[0] == Code.FAILED_PRECONDITION


def test_the_estimate_counts_variables_and_graph(copy: Path) -> None:
    before = model_sources.estimate(str(copy))
    with open(copy / "variables" / "variables.data-00000-of-00001", "ab") as file:
        file.write(bytes(1000))
    (copy / "assets" / "large.txt").write_bytes(bytes(5000))
    assert model_sources.estimate(str(copy)) == before + 1000
    assert model_sources.estimate(os.devnull + "/none") > 0
