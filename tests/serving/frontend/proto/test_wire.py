"""Large tensors are taken out of a request so that the rest and they mean what the whole did."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.serving.frontend.proto import inference, serving
from sublet.serving.frontend.proto.wire import (
    INFER,
    LARGE,
    MOST,
    PREDICT,
    content_at,
    lift,
    lift_raw,
)

REQUEST = serving("PredictRequest")


def _request(**sizes: int) -> Any:
    request = REQUEST(output_filter=["y"])
    request.model_spec.name = "m"
    for name, size in sizes.items():
        tensor = request.inputs[name]
        tensor.dtype = 4
        tensor.tensor_shape.dim.add(size=size)
        tensor.tensor_content = np.arange(size).astype(np.uint8).tobytes()
    return request


@given(st.dictionaries(st.text(max_size=3), st.sampled_from([0, 1, LARGE, LARGE + 9]), max_size=4))
@settings(deadline=None)
def test_what_is_left_and_what_is_taken_make_the_whole(sizes: dict[str, int]) -> None:
    whole = _request(**sizes)
    lifted = lift(memoryview(whole.SerializeToString()))
    request = REQUEST.FromString(lifted.request)
    assert lifted.inputs == len(sizes)
    assert set(lifted.contents) == {name for name, size in sizes.items() if size >= LARGE}
    assert len(lifted.request) < LARGE
    for name, content in lifted.contents.items():
        assert not request.inputs[name].tensor_content
        request.inputs[name].tensor_content = bytes(content)
    assert request == whole


def test_contents_are_not_copied() -> None:
    data = bytearray(_request(x=LARGE).SerializeToString())
    content = lift(memoryview(data)).contents["x"]
    before = content[0]
    at = data.index(bytes(content))
    data[at] = before + 1
    assert content[0] == before + 1


ONE = _request(x=LARGE).SerializeToString()
TWICE = ONE + ONE


@pytest.mark.parametrize(
    "data",
    [
        ONE[:-1],
        ONE + b"\xff",
        ONE + b"\x0b",
        b"\xff" * 20 + ONE,
        TWICE,
        b"\x12\x80\x80\x04" + b"\0" * LARGE,
        ONE + b"\x12\0" * MOST,
    ],
)
def test_what_is_unusual_is_left_as_it_is(data: bytes) -> None:
    lifted = lift(memoryview(data))
    assert bytes(lifted.request) == data
    assert not lifted.contents


def test_an_input_that_is_given_again_is_seen_in_the_number() -> None:
    lifted = lift(memoryview(ONE + _request(x=1).SerializeToString()))
    assert lifted.inputs == 2
    assert len(REQUEST.FromString(lifted.request).inputs) == 1


def test_raw_contents_are_taken_out_in_their_order() -> None:
    whole = inference("ModelInferRequest")(model_name="m", raw_input_contents=[b"a", b"", b"ccc"])
    whole.inputs.add(name="x", datatype="UINT8", shape=[1])
    rest, raw = lift_raw(memoryview(whole.SerializeToString()))
    assert [bytes(one) for one in raw] == [b"a", b"", b"ccc"]
    left = inference("ModelInferRequest").FromString(rest)
    assert not left.raw_input_contents
    left.raw_input_contents.extend(map(bytes, raw))
    assert left == whole
    damaged = memoryview(whole.SerializeToString() + b"\xff")
    assert lift_raw(damaged) == (damaged, [])


def test_where_a_large_content_begins_is_seen_from_the_first_bytes() -> None:
    whole = _request(a=10, x=LARGE)
    content = whole.inputs["x"].tensor_content
    data = whole.SerializeToString()
    assert content_at(data[:1000], PREDICT) == data.index(content)
    assert content_at(data[:1000], INFER) == 0
    asked = inference("ModelInferRequest")(model_name="m", raw_input_contents=[b"a", content])
    data = asked.SerializeToString()
    assert content_at(memoryview(data)[:1000], INFER) == data.index(content)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_request_have_no_content_or_one_within_them(data: bytes) -> None:
    for way in (PREDICT, INFER):
        assert 0 <= content_at(data, way) <= len(data)
