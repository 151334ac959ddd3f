"""What a SavedModel says of itself, without TensorFlow."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.engine import savedmodel_proto
from sublet.protobuf_fields import Malformed
from support.leased import SAVED_MODELS

TF1 = SAVED_MODELS / "saved_model_half_plus_two_cpu" / "00000123"
DTYPES = {"DT_FLOAT": 1, "DT_STRING": 7, "DT_INVALID": 0}


@pytest.mark.parametrize(
    ("model", "metadata"),
    [
        ("saved_model_half_plus_two_cpu", "half_plus_two_model_metadata.json"),
        (
            "saved_model_half_plus_two_2_versions",
            "saved_model_half_plus_two_2_versions_metadata.json",
        ),
        (
            "saved_model_half_plus_two_tf2_cpu",
            "saved_model_half_plus_two_tf2_2_versions_metadata.json",
        ),
    ],
)
def test_the_signatures_are_those_that_tensorflow_serving_shows(model: str, metadata: str) -> None:
    (graph,) = savedmodel_proto.read(str(SAVED_MODELS / model / "00000123"))
    body = json.loads((SAVED_MODELS / "configs" / metadata).read_text())
    expected = body["metadata"]["signature_def"]["signature_def"]
    assert graph.tags == {"serve"}
    assert {
        name: {
            "inputs": {key: _expected(info) for key, info in signature["inputs"].items()},
            "outputs": {key: _expected(info) for key, info in signature["outputs"].items()},
            "method": signature["method_name"],
        }
        for name, signature in expected.items()
    } == {
        name: {"inputs": one.inputs, "outputs": one.outputs, "method": one.method}
        for name, one in graph.signatures.items()
    }


def _expected(info: dict[str, object]) -> savedmodel_proto.TensorSpec:
    shape = info["tensor_shape"]
    assert isinstance(shape, dict)
    dims = None if shape["unknown_rank"] else tuple(int(dim["size"]) for dim in shape["dim"])
    return savedmodel_proto.TensorSpec(str(info["name"]), DTYPES[str(info["dtype"])], dims)


def test_a_graph_without_variables_is_told_from_one_with_them() -> None:
    (without,) = savedmodel_proto.read(str(SAVED_MODELS / "matrix_half_plus_two" / "1"))
    (having,) = savedmodel_proto.read(str(TF1))
    assert not without.variables
    assert having.variables


def test_a_file_that_is_none_inside_is_found_out(tmp_path: Path) -> None:
    (tmp_path / savedmodel_proto.GRAPH).write_bytes(b"junk" * 100)
    with pytest.raises(Malformed):
        savedmodel_proto.read(str(tmp_path))


def test_every_truncated_file_is_found_out() -> None:
    data = (TF1 / "saved_model.pb").read_bytes()
    whole = savedmodel_proto.parse(memoryview(data))
    for length in range(len(data)):
        try:
            part = savedmodel_proto.parse(memoryview(data)[:length])
        except Malformed:
            continue
        # Whatever is missing then was not about how to call the model.
        assert part == whole


@given(st.binary(max_size=200))
def test_random_bytes_are_malformed_or_read_but_nothing_else(data: bytes) -> None:
    with contextlib.suppress(Malformed):
        assert savedmodel_proto.parse(memoryview(data))
