"""Arrays as bytes and back, and what is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sublet.channel import tensors
from sublet.channel.records import Malformed
from sublet.channel.tensors import Array, Tensor

NUMBERS = [number for number in tensors.NAMES if number not in (7, 14)]


def there_and_back(array: Array) -> Array:
    number = tensors.number_of(array.dtype)
    raw = tensors.data(array, number)
    memory = b"12345678" + (raw if isinstance(raw, bytes) else raw.tobytes())
    head = tensors.head(number, array.shape, tensors.INLINE, len(memory) - 8)
    (tensor,) = tensors.layout(head)
    return tensors.view(tensor, memory, 8)


@given(st.sampled_from(NUMBERS), hnp.array_shapes(min_dims=0, min_side=0), st.data())
def test_numbers_of_every_type_and_shape_arrive_as_they_were(
    number: int, shape: tuple[int, ...], data: Any
) -> None:
    array = data.draw(hnp.arrays(tensors.dtype_of(number), shape))
    back = there_and_back(array)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


@given(st.lists(st.binary(max_size=20), max_size=12), st.booleans())
def test_strings_arrive_as_they_were(words: list[bytes], square: bool) -> None:
    array = np.array([*words, b""], object)[:-1]
    if square:
        array = array.reshape(-1, 1)
    back = there_and_back(array)
    assert back.shape == array.shape
    assert back.tolist() == array.tolist()


def test_text_travels_as_utf8() -> None:
    assert there_and_back(np.array(["é", "b"])).tolist() == ["é".encode(), b"b"]
    assert there_and_back(np.array(["é"], object)).tolist() == ["é".encode()]


def test_strided_and_big_endian_arrays_arrive_as_they_look() -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert there_and_back(array.T).tolist() == array.T.tolist()
    assert there_and_back(array[:, ::2]).tolist() == array[:, ::2].tolist()
    assert there_and_back(array.astype(">i4")).tolist() == array.tolist()


def test_bfloat16_is_known_where_ml_dtypes_is() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    back = there_and_back(np.array([1.5, -2], ml_dtypes.bfloat16))
    assert back.astype(np.float32).tolist() == [1.5, -2]


@pytest.mark.parametrize("array", [np.array([object()]), np.array([1, None])])
def test_objects_that_are_no_strings_cannot_be_sent(array: Array) -> None:
    with pytest.raises(TypeError, match="bytes or str"):
        tensors.data(array, tensors.DT_STRING)


def test_dates_cannot_be_sent() -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        tensors.number_of(np.dtype("datetime64[s]"))


@given(st.binary(max_size=64))
def test_heads_of_any_bytes_are_read_or_refused(heads: bytes) -> None:
    try:
        found = tensors.layout(heads)
    except Malformed:
        return
    assert b"".join(tensors.head(*tensor) for tensor in found) == heads or any(heads)
    for tensor in found:
        assert all(size >= 0 for size in tensor.shape)


def test_strings_whose_lengths_lie_are_refused() -> None:
    memory = np.array([100, 1], "<u4").tobytes() + b"abc"
    with pytest.raises(Malformed, match="longer or shorter"):
        tensors.view(Tensor(7, (2,), tensors.INLINE, len(memory)), memory, 0)


def test_new_arrays_begin_where_tensorflow_wants_them() -> None:
    for shape in ((1,), (3, 5), (1000, 10)):
        array = tensors.empty(shape, np.dtype(np.float32))
        assert array.shape == shape
        assert array.ctypes.data % tensors.ALIGNED == 0
