"""Serving with a TensorFlow that lacks what it promises nobody: slower, and no less."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sublet.engine.savedmodel_loading import SavedModelOpening, _Session
from support import exports
from support.leased import SAVED_MODELS, Leased, room

V1, V2 = "saved_model_half_plus_two_cpu", "saved_model_half_plus_two_tf2_cpu"


def without_private_calls() -> None:
    """Take away what the short ways need, and count how often the others are gone."""
    from tensorflow.python import framework
    from tensorflow.python.client import pywrap_tf_session, session

    # What loads a model is loaded: only then can it lack something.
    SavedModelOpening(str(SAVED_MODELS / V1 / "00000123"), {}).open().close()
    del framework.importer, pywrap_tf_session.TF_SessionRunCallable, session.BaseSession._Callable
    sys.modules["tensorflow.python.framework.importer"] = None  # type: ignore[assignment]
    public = _Session._public

    def counted(self: _Session, *args: list[str]) -> Any:
        room["public"] += 1
        return public(self, *args)

    setattr(_Session, "_public", counted)  # noqa: B010  (to a type checker they differ)


@pytest.fixture(scope="module")
def child(real_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Leased]:
    child = Leased(tmp_path_factory.mktemp("records"), 64)
    child.run(without_private_calls)
    yield child
    child.close()


def answers(path: str, *given: dict[str, Any]) -> list[dict[str, Any]]:
    """What a model gives for each of the inputs in turn, and that the public ways gave it."""
    room["public"] = 0
    opened = SavedModelOpening(path, {}).open()
    bound = opened.signatures["serving_default"]
    made = [bound.call(inputs) for inputs in given]
    opened.close()
    assert room["public"]
    return [{name: array.tolist() for name, array in one.items()} for one in made]


@pytest.mark.parametrize(
    ("model", "x", "y"), [(V1, [[1.0], [2.0], [5.0]], [[2.5], [3.0], [4.5]]), (V2, [5.0], [4.5])]
)
def test_models_of_both_formats_are_loaded_and_called(
    child: Leased, model: str, x: Any, y: Any
) -> None:
    path = str(SAVED_MODELS / model / "00000123")
    assert child.run(answers, path, {"x": np.array(x, np.float32)}) == [{"y": y}]


def test_assets_are_read_and_strings_taken(child: Leased, tmp_path: Path) -> None:
    path = child.run(exports.table, tmp_path / "1", ["a", "b"])
    words = {"word": np.array([b"b", b"none"], object)}
    assert child.run(answers, path, words) == [{"number": [1, -1]}]


def test_a_model_keeps_its_state_between_calls(child: Leased, tmp_path: Path) -> None:
    path = child.run(exports.counting, tmp_path / "1")
    ones = {"x": np.ones(64, np.float32)}
    first, second = child.run(answers, path, ones, ones)
    assert first == {"total": [1.0] * 64}
    assert second == {"total": [2.0] * 64}
