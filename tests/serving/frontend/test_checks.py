"""Requests are held against a signature, in TensorFlow Serving's words."""

import re
from typing import Any

import numpy as np
import pytest

from sublet.channel.codes import Code
from sublet.engine.savedmodel_proto import Signature, TensorSpec
from sublet.errors import ServingError
from sublet.serving.frontend.checks import (
    check_inputs,
    check_names,
    check_outputs,
    check_signature,
)

PREDICT = "tensorflow/serving/predict"
SIGNATURE = Signature(
    PREDICT,
    {"a": TensorSpec("a:0", 1, (-1, 4)), "b": TensorSpec("b:0", 3, (-1,))},
    {"y": TensorSpec("y:0", 1, (-1,)), "z": TensorSpec("z:0", 1, (-1,))},
)


def _one(shape: tuple[int, ...] | None, dtype: int = 1) -> Signature:
    return Signature(PREDICT, {"x": TensorSpec("x:0", dtype, shape)}, {})


def _refusal(act: Any, *arguments: Any, **named: Any) -> tuple[int, str]:
    with pytest.raises(ServingError) as wrong:
        act(*arguments, **named)
    return wrong.value.code, wrong.value.message


def test_the_default_signature_is_meant_when_none_is_named() -> None:
    signatures = {"serving_default": SIGNATURE}
    assert check_signature(signatures, "") == ("serving_default", SIGNATURE)


def test_an_unknown_signature_is_refused_in_the_words_of_its_protocol() -> None:
    assert _refusal(check_signature, {}, "x") == (
        Code.FAILED_PRECONDITION,
        'Serving signature key "x" not found.',
    )
    assert _refusal(check_signature, {}, "x", rest=True) == (
        Code.INVALID_ARGUMENT,
        'Serving signature name: "x" not found in signature def',
    )


def test_a_wrong_number_of_inputs_is_told_with_the_difference() -> None:
    assert _refusal(check_names, SIGNATURE, ["a"]) == (
        Code.INVALID_ARGUMENT,
        "input size does not match signature: 1!=2 len({a}) != len({a,b}). "
        "Sent extra: {}. Missing but required: {b}.",
    )
    assert "Sent extra: {c}. Missing" in _refusal(check_names, SIGNATURE, ["a", "b", "c"])[1]


def test_a_wrong_name_is_told_with_the_tensor_that_is_missing() -> None:
    code, text = _refusal(check_names, SIGNATURE, ["a", "c"])
    assert code == Code.INVALID_ARGUMENT
    assert text.startswith("Signature input alias: b(feed name: b:0) not found in request")


@pytest.mark.parametrize(
    ("array", "answer"),
    [
        (np.zeros((1, 1), np.float64), "to be float but double is provided"),
        (np.zeros((1, 1), np.int64), "to be float but int64 is provided"),
        (np.array([[b"x"]], object), "to be float but string is provided"),
        (np.zeros((1, 1), "M8[s]"), "to be float but datetime64[s] is provided"),
    ],
)
def test_a_wrong_type_is_refused(array: Any, answer: str) -> None:
    code, text = _refusal(check_inputs, _one((-1, 1)), {"x": array})
    assert code == Code.INVALID_ARGUMENT
    assert re.search(re.escape(answer), text)


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        ((-1, 4), (3, 4)),
        ((-1, -1), (3, 7)),
        ((-1, -1, 3), (3, 7, 3)),
        (None, (1, 2, 3)),
        ((), ()),
        ((-1, 1), (3,)),
        ((1,), (3,)),
        ((-1,), (3, 1)),
        ((-1, 1), ()),
        ((-1, 4), (0, 4)),
    ],
)
def test_shapes_that_tensorflow_serving_takes_are_taken(
    wanted: tuple[int, ...] | None, given: tuple[int, ...]
) -> None:
    check_inputs(_one(wanted), {"x": np.zeros(given, np.float32)})


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        ((-1, 4), (3, 5)),
        ((-1, 4), (4,)),
        ((-1, 4), ()),
        ((-1, -1), (3,)),
        ((-1, -1, 3), (3, 7, 4)),
        ((-1,), (3, 2)),
    ],
)
def test_rows_of_another_shape_are_refused(wanted: tuple[int, ...], given: tuple[int, ...]) -> None:
    code, text = _refusal(check_inputs, _one(wanted), {"x": np.zeros(given, np.float32)})
    assert code == Code.INVALID_ARGUMENT
    assert str(list(given)).replace(" ", "") in text
    assert str(list(wanted)).replace(" ", "") in text


def test_wanted_outputs_keep_their_order_and_must_exist_once() -> None:
    assert check_outputs(SIGNATURE, ["z", "y"]) == ("z", "y")
    assert _refusal(check_outputs, SIGNATURE, ["q"]) == (
        Code.INVALID_ARGUMENT,
        "output tensor alias not found in signature: q Outputs expected to be in the set {y,z}.",
    )
    assert _refusal(check_outputs, SIGNATURE, ["y", "y"])[1] == "duplicate output tensor alias: y"
