"""Examples are written and passed on; classes and numbers are read out of what a model gave."""

from typing import Any

import numpy as np
import pytest

from sublet.channel.codes import Code
from sublet.engine.savedmodel_proto import Signature, TensorSpec
from sublet.errors import ServingError
from sublet.serving.frontend import examples
from sublet.serving.frontend.proto import message, serving

X = TensorSpec("x:0", 7, None)


def _signature(inputs: str, *outputs: str) -> Signature:
    return Signature("", dict.fromkeys(inputs.split(), X), dict.fromkeys(outputs, X))


def _refusal(act: Any, *arguments: Any) -> tuple[int, str]:
    with pytest.raises(ServingError) as wrong:
        act(*arguments)
    return wrong.value.code, wrong.value.message


def test_a_serialized_example_holds_each_feature_as_its_kind() -> None:
    data = examples.serialize({"f": [1.5, 2], "i": [3, -4], "b": [b"x", b""], "e": []})
    feature = message("tensorflow.Example").FromString(data).features.feature
    assert list(feature["f"].float_list.value) == [1.5, 2.0]
    assert list(feature["i"].int64_list.value) == [3, -4]
    assert list(feature["b"].bytes_list.value) == [b"x", b""]
    assert "e" in feature


def test_a_feature_of_mixed_kinds_or_huge_numbers_is_refused() -> None:
    mixed: Any = [1.5, b"x"]
    assert "mixes types" in _refusal(examples.serialize, {"f": mixed})[1]
    assert "64 bits" in _refusal(examples.serialize, {"f": [2**70]})[1]


def test_a_large_context_is_not_repeated_without_end() -> None:
    with pytest.raises(ServingError, match="Send fewer examples"):
        examples.with_context(bytes(2**20), [b""] * 257)
    assert len(examples.with_context(bytes(2**10), [b""] * 257)) == 257


def test_the_context_is_merged_into_each_example() -> None:
    given = serving("Input")()
    given.example_list_with_context.context = examples.serialize({"a": [1], "b": [1]})
    given.example_list_with_context.examples.append(examples.serialize({"b": [2]}))
    (merged,) = examples.from_input(given)
    feature = message("tensorflow.Example").FromString(merged).features.feature
    assert list(feature["a"].int64_list.value) == [1]
    assert list(feature["b"].int64_list.value) == [2]


def test_no_examples_are_refused() -> None:
    empty = serving("Input")()
    assert _refusal(examples.from_input, empty) == (Code.INVALID_ARGUMENT, "Input is empty.")
    empty.example_list.SetInParent()
    assert _refusal(examples.from_input, empty) == (Code.INVALID_ARGUMENT, "Input is empty.")


def test_classes_and_scores_come_together_or_alone() -> None:
    scores = np.array([[0.25, 0.75]], np.float32)
    classes = np.array([["käse".encode(), b"\xff"]], object)
    both = {"scores": scores, "classes": classes}
    assert examples.classifications(both, 1) == [[("käse", 0.25), ("\ufffd", 0.75)]]
    assert examples.classifications({"scores": scores}) == [[("", 0.25), ("", 0.75)]]
    assert examples.classifications({"classes": classes}) == [[("käse", 0.0), ("\ufffd", 0.0)]]


@pytest.mark.parametrize(
    ("outputs", "answer"),
    [
        ({"scores": np.zeros(3, np.float32)}, "[batch_size num_classes] but got [3]"),
        ({"scores": np.zeros((1, 3))}, "Expected scores Tensor of DT_FLOAT. Got: DT_DOUBLE"),
        ({"scores": np.zeros((2, 3), np.float32)}, "scores output batch size of 1. Got: 2"),
        ({"classes": np.zeros((1, 3))}, "Expected classes Tensor of DT_STRING. Got: DT_DOUBLE"),
        (
            {"scores": np.zeros((1, 3), np.float32), "classes": np.full((1, 2), b"x", object)},
            "Tensors class and score should match in dim_size(1). Got 2 vs. 3",
        ),
        ({}, "neither"),
    ],
)
def test_outputs_that_are_no_classes_are_refused(outputs: Any, answer: str) -> None:
    code, text = _refusal(examples.classifications, outputs, 1)
    assert code == Code.INVALID_ARGUMENT
    assert answer in text


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_a_number_for_each_example(shape: tuple[int, ...]) -> None:
    outputs = {"outputs": np.array([1.5, 2.5], np.float32).reshape(shape)}
    assert examples.regressions(outputs, 2) == [1.5, 2.5]


@pytest.mark.parametrize(
    ("outputs", "answer"),
    [
        ({}, "Could not find output tensor 'outputs'"),
        ({"outputs": np.zeros((2, 2), np.float32)}, "[batch_size, 1] but got [2,2]"),
        ({"outputs": np.zeros(3, np.float32)}, "did not match output batch size: 2 vs. 3"),
        ({"outputs": np.zeros(2)}, "Expected output Tensor of DT_FLOAT.  Got: DT_DOUBLE"),
    ],
)
def test_outputs_that_are_no_numbers_are_refused(outputs: Any, answer: str) -> None:
    code, text = _refusal(examples.regressions, outputs, 2)
    assert code == Code.INVALID_ARGUMENT
    assert answer in text


@pytest.mark.parametrize(
    ("method", "signature", "code", "answer"),
    [
        (examples.CLASSIFY, _signature("inputs a", "scores"), 3, "Expected one input Tensor."),
        (examples.CLASSIFY, _signature("inputs", "a", "b", "c"), 3, "output Tensors, found 3"),
        (examples.CLASSIFY, _signature("a", "scores"), 9, "No classification inputs found in"),
        (examples.CLASSIFY, _signature("inputs", "a"), 9, '"classes" or "scores". Signature'),
        (examples.REGRESS, _signature("inputs a", "outputs"), 3, "Expected one input Tensor."),
        (examples.REGRESS, _signature("inputs", "a", "b"), 3, "Expected one output Tensor."),
        (examples.REGRESS, _signature("a", "outputs"), 9, "No regression inputs found in"),
        (examples.REGRESS, _signature("inputs", "a"), 9, "No regression outputs found in"),
    ],
)
def test_a_signature_that_cannot_take_examples_is_refused(
    method: str, signature: Signature, code: int, answer: str
) -> None:
    found, text = _refusal(examples.find, {"serving_default": signature}, "", method)
    assert found == code
    assert answer in text


def test_an_unknown_signature_is_refused_by_its_name() -> None:
    answer = (Code.INVALID_ARGUMENT, "No signature was found with the name: s")
    assert _refusal(examples.find, {}, "s", examples.CLASSIFY) == answer
    assert _refusal(examples.find, {}, "s", examples.REGRESS) == answer
