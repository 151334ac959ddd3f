"""The signatures of a SavedModel, for the server."""

import shutil
from pathlib import Path

import pytest

from sublet.channel.codes import Code
from sublet.engine.savedmodel_proto import Signature, TensorSpec
from sublet.errors import ServingError
from sublet.serving.control.model_directories import signatures
from support.leased import SAVED_MODELS

MODEL = SAVED_MODELS / "saved_model_half_plus_two_cpu" / "00000123"


def test_a_model_is_described_without_tensorflow() -> None:
    found = signatures(str(MODEL))
    assert found is not None
    assert found["serving_default"] == Signature(
        "tensorflow/serving/predict",
        {"x": TensorSpec("x:0", 1, (-1, 1))},
        {"y": TensorSpec("y:0", 1, (-1, 1))},
    )
    assert len(found) == 5


def test_what_only_tensorflow_can_tell_is_left_to_it(tmp_path: Path) -> None:
    assert signatures(str(tmp_path)) is None
    assert signatures(str(MODEL), tags=("train",)) is None


def test_a_damaged_model_is_told(tmp_path: Path) -> None:
    copy = shutil.copytree(MODEL, tmp_path / "copy")
    (copy / "saved_model.pb").write_bytes(b"\xff" * 20)
    with pytest.raises(ServingError, match="damaged") as caught:
        signatures(str(copy))
    assert caught.value.code == Code.DATA_LOSS
