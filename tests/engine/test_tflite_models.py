"""TensorFlow Lite models of TensorFlow Serving's own tests, in a real interpreter."""

from pathlib import Path

import numpy as np
import pytest

from sublet.engine import model_sources
from sublet.engine.signatures import Unloaded
from sublet.engine.tflite_models import TfliteOpening
from sublet.errors import ServingError
from support.servers import MODELS

pytestmark = pytest.mark.slow


def place(name: str) -> str:
    return str(MODELS / name / "00000123")


@pytest.mark.parametrize(
    "name", ["saved_model_half_plus_two_tflite", "saved_model_half_plus_two_tflite_with_sigdef"]
)
def test_a_model_is_called_by_its_signature_with_any_number_of_rows(name: str) -> None:
    assert model_sources.kind(place(name), {"prefer_tflite": True}) == model_sources.TFLITE
    opened = TfliteOpening(place(name), {}).open()
    half = opened.signatures["serving_default"]
    assert (list(half.inputs), list(half.outputs)) == (["x"], ["y"])
    for rows in ([1.0], [1.0, 2.0, 5.0], [2.0]):
        outputs = half.call({"x": np.array(rows, np.float32)})
        assert outputs["y"].tolist() == [row / 2 + 2 for row in rows]
    opened.close()
    with pytest.raises(Unloaded):
        half.call({"x": np.ones(1, np.float32)})


def test_what_the_model_cannot_take_is_an_error_of_the_call() -> None:
    opened = TfliteOpening(place("saved_model_half_plus_two_tflite"), {}).open()
    half = opened.signatures["serving_default"]
    with pytest.raises(ServingError, match="TensorFlow Lite"):
        half.call({"x": np.array([1], np.int64)})
    opened.close()


def test_a_model_with_operations_that_the_interpreter_lacks_names_them() -> None:
    with pytest.raises(ServingError, match="unresolved custom op: ParseExampleV2"):
        TfliteOpening(place("parse_example_tflite"), {}).open()


def test_a_file_that_is_none_says_so(tmp_path: Path) -> None:
    (tmp_path / model_sources.LITE).write_bytes(b"no model")
    with pytest.raises(ServingError, match="cannot be loaded by TensorFlow Lite"):
        TfliteOpening(str(tmp_path), {}).open()
