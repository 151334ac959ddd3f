"""Tensors out of JSON and back: the quick way and the exact way say the same."""

import json
import struct
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sublet.engine.savedmodel_proto import TensorSpec
from sublet.errors import ServingError
from sublet.serving.frontend.rest import documents, forms, values, writing

DTYPES = [1, 2, 3, 4, 7, 9, 10, 19, 22]

leaves = (
    st.integers(-(2**65), 2**65)
    | st.sampled_from([0, 1, 2**24 - 1, 2**24, 2**53, 2**31, -(2**31), 2**63, 255, 256])
    | st.floats(allow_nan=False)
    | st.text(max_size=3)
    | st.booleans()
    | st.none()
    | st.fixed_dictionaries({"b64": st.sampled_from(["YQ==", "YQ", "!", ""])})
)
anything = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4), max_leaves=12)
alike = st.sampled_from([st.floats(-1e6, 1e6), st.integers(0, 300), st.text(max_size=3)]).flatmap(
    lambda leaf: st.lists(st.lists(leaf, min_size=2, max_size=2), min_size=1, max_size=4)
)


def outcome(act: Any) -> Any:
    try:
        found = act()
    except ServingError as failed:
        return failed.message
    return found.dtype, found.shape, found.tolist()


def exactly(value: Any, dtype: int) -> Any:
    shape = values.shape_of(value)
    return values.array_of(values.exactly(value, shape, dtype), dtype, shape)


@given(anything | alike, st.sampled_from(DTYPES))
def test_the_quick_way_never_differs_from_the_exact_one(value: Any, dtype: int) -> None:
    assert outcome(lambda: values.tensor(value, dtype)) == outcome(lambda: exactly(value, dtype))


@given(st.lists(anything, min_size=1, max_size=4) | alike, st.sampled_from(DTYPES))
def test_rows_are_what_their_tensor_is(rows: list[Any], dtype: int) -> None:
    specs = {"t": TensorSpec("t:0", dtype)}
    together = outcome(lambda: forms.rows(rows, specs)["t"])
    if isinstance(together, str):
        assert isinstance(outcome(lambda: exactly(rows, dtype)), str)
    else:
        assert together == outcome(lambda: exactly(rows, dtype))


@given(st.integers(1, 500), st.sampled_from(["x", None, True, [1.5], 1e300, {"t": 1}, {"z": 1}]))
def test_a_mistake_is_found_in_its_place_of_a_long_list(place: int, mistake: Any) -> None:
    specs = {"t": TensorSpec("t:0", 1)}
    plain: list[Any] = [1.5] * 500
    named: list[Any] = [{"t": 1.5} for _ in range(500)]
    plain.insert(place, mistake)
    named.insert(place, mistake if isinstance(mistake, dict) else {"t": mistake})
    assert f" {place} " in str(outcome(lambda: forms.rows(plain, specs)["t"]))
    if mistake != {"t": 1}:
        assert f" {place} " in str(outcome(lambda: forms.rows(named, specs)["t"]))
    with pytest.raises(ServingError):
        forms.columns({"t": [[plain]]}, specs)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20))
def test_every_float_reads_back_as_the_same_bits(bits: list[int]) -> None:
    given = np.array(bits, np.uint32).view(np.float32)
    body = writing.predictions({"y": given})
    back = np.array(json.loads(body)["predictions"], np.float32)
    same = (back.view(np.uint32) == given.view(np.uint32)) | (np.isnan(back) & np.isnan(given))
    assert same.all()


@given(arrays.arrays(np.float64, arrays.array_shapes(max_dims=3, max_side=4)))
def test_doubles_and_their_shapes_read_back(given: Any) -> None:
    back = np.array(json.loads(writing.columns({"y": given}))["outputs"], np.float64)
    assert np.array_equal(back, given, equal_nan=True)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, b"1.0"), (2.5, b"2.5"), (0.1, b"0.1"), (3.0e-5, b"0.00003"), (-0.0, b"-0.0")],
)
def test_floats_are_short_and_look_like_floats(value: float, text: bytes) -> None:
    assert writing.encode(np.array([value], np.float32)) == b"[%b]" % text


def test_outputs_that_do_not_fit_together_are_refused() -> None:
    two, three = np.zeros((2, 1), np.float32), np.zeros((3, 1), np.float32)
    with pytest.raises(ServingError, match="b has inconsistent batch size: 3 expecting: 2"):
        writing.predictions({"a": two, "b": three})
    with pytest.raises(ServingError, match="a has no shape information"):
        writing.predictions({"a": np.array(1, np.float32)})
    with pytest.raises(ServingError, match="empty tensor map"):
        writing.columns({})
    with pytest.raises(ServingError, match="tensor type: complex64"):
        writing.columns({"a": np.zeros(2, np.complex64)})


@given(st.text(max_size=30) | st.binary(max_size=30))
def test_any_document_is_an_object_or_refused(text: str | bytes) -> None:
    body = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    try:
        found: Any = documents.parse(body)
    except ServingError as refused:
        found = refused.message
    assert type(found) is dict or found.startswith("JSON ")


@given(anything)
def test_a_value_of_any_kind_can_be_shown(value: Any) -> None:
    text = documents.show(value)
    assert len(text) <= documents._SHOWN + 3
    if len(text) < documents._SHOWN:
        assert json.loads(text) == value


@given(st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False)))
def test_both_parsers_agree_on_what_both_take(document: dict[str, float]) -> None:
    body = orjson.dumps(document)
    odd = body[:-1] + (b"," if document else b"") + b'"odd key":NaN}'
    found = documents.parse(odd)
    assert struct.pack("d", found.pop("odd key"))[-1] & 0x7F == 0x7F
    assert found == documents.parse(body)


def test_bytes_may_be_written_in_either_alphabet_with_or_without_padding() -> None:
    for text in ("_-8=", "/+8=", "_-8", "/+8", " / + 8\n"):
        assert values.bytes_of({"b64": text}) == b"\xff\xef"
    for text in ("a", "====", "YQ=", "Y=Q=", "é"):
        with pytest.raises(ServingError, match="Unable to base64 decode"):
            values.bytes_of({"b64": text})
