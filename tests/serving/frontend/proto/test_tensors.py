"""A TensorProto is read in every form that clients send, and written in TensorFlow Serving's."""

import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sublet.errors import ServingError
from sublet.serving.dtypes import DATA_TYPES, STRING
from sublet.serving.frontend.proto import message, tensors

TENSOR = message("tensorflow.TensorProto")
NUMBERS = [kind for kind in DATA_TYPES.values() if kind.array is not None and kind.number != STRING]


def _proto(dtype: int, shape: tuple[int, ...], **fields: Any) -> Any:
    proto = TENSOR(dtype=dtype, **fields)
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    return proto


def _refusal(proto: Any) -> str:
    with pytest.raises(ServingError) as wrong:
        tensors.read("x", proto)
    assert wrong.value.code == 3
    assert wrong.value.message.startswith("tensor parsing error: x")
    return wrong.value.message


@given(st.data())
def test_what_is_written_reads_back_the_same(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([k for k in NUMBERS if k.word != "bfloat16"]))
    assert kind.array is not None
    shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
    array = data.draw(hnp.arrays(kind.array, shapes))
    read = tensors.read("x", TENSOR.FromString(tensors.write(array)))
    assert read.dtype == array.dtype
    assert read.shape == array.shape
    assert read.tobytes() == array.tobytes()


@given(st.data())
def test_tensor_content_reads_as_it_lies_in_memory(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([k for k in NUMBERS if k.word != "bfloat16"]))
    assert kind.array is not None
    array = data.draw(hnp.arrays(kind.array, hnp.array_shapes(min_dims=0)))
    proto = _proto(kind.number, array.shape, tensor_content=array.tobytes())
    assert tensors.read("x", proto).tobytes() == array.tobytes()


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_strings_read_from_values_and_from_content(strings: list[bytes]) -> None:
    proto = _proto(STRING, (len(strings),), string_val=strings)
    assert tensors.read("x", proto).tolist() == strings
    assert TENSOR.FromString(tensors.write(tensors.read("x", proto))) == proto
    lengths = b"".join(
        bytes([len(s)]) if len(s) < 128 else bytes([len(s) & 127 | 128, len(s) >> 7])
        for s in strings
    )
    proto = _proto(STRING, (len(strings),), tensor_content=lengths + b"".join(strings))
    assert tensors.read("x", proto).tolist() == strings


def test_a_short_list_is_repeated_and_an_empty_one_is_zeros() -> None:
    one = struct.pack("<f", 1.5)
    assert tensors.read("x", _proto(1, (2, 2), float_val=[one])).tolist() == [[1.5, 1.5]] * 2
    assert tensors.read("x", _proto(3, (3,), int_val=[1, 2])).tolist() == [1, 2, 2]
    assert tensors.read("x", _proto(9, (2,))).tolist() == [0, 0]
    assert tensors.read("x", _proto(10, (2,), bool_val=[True])).tolist() == [True, True]
    assert tensors.read("x", _proto(STRING, (2,), string_val=[b"a"])).tolist() == [b"a", b"a"]
    assert tensors.read("x", _proto(STRING, (2,))).tolist() == [b"", b""]


def test_halves_come_as_their_bits() -> None:
    bits = np.array([1.5, -2.0], np.float16).view(np.uint16).tolist()
    assert tensors.read("x", _proto(19, (2,), half_val=bits)).tolist() == [1.5, -2.0]


def test_packed_numbers_may_come_in_pieces_and_one_by_one() -> None:
    pieces = [struct.pack("<f", value) for value in (1.0, 2.0)]
    assert tensors.read("x", _proto(1, (2,), float_val=pieces)).tolist() == [1.0, 2.0]
    single = b"".join(b"\x2d" + each for each in pieces)
    proto = TENSOR.FromString(_proto(1, (2,)).SerializeToString() + single)
    assert tensors.read("x", proto).tolist() == [1.0, 2.0]
    double = b"\x31" + struct.pack("<d", 3.0)
    proto = TENSOR.FromString(_proto(2, (1,)).SerializeToString() + double)
    assert tensors.read("x", proto).tolist() == [3.0]


def test_a_truth_value_is_one_whatever_byte_says_so() -> None:
    array = tensors.read("x", _proto(10, (3,), tensor_content=b"\0\1\2"))
    assert array.tolist() == [False, True, True]
    assert array.view(np.uint8).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("proto", "answer"),
    [
        (_proto(1, (3,), tensor_content=b"12345678"), "8 bytes; its shape and type take 12"),
        (_proto(1, (1,), float_val=[b"12345678"]), "2 values; its shape takes 1"),
        (_proto(1, (1,), float_val=[b"123"]), "no whole numbers"),
        (_proto(1, (2**40,)), "too many to fill in"),
        (_proto(1, (2**62, 2**62)), "too many to fill in"),
        (_proto(STRING, (2**40,)), "too many to fill in"),
        (_proto(STRING, (2**20,), string_val=[b"x" * 100]), "too many to fill in"),
        (_proto(1, (2**40,), tensor_content=b"1234"), "4 bytes; its shape"),
        (_proto(1, (-1,)), "shape is not known"),
        (_proto(1, (1,) * 100, float_val=[b"1234"]), "100 dimensions"),
        (_proto(4, (1,), int_val=[300]), "300"),
        (_proto(19, (1,), half_val=[-1]), "-1"),
        (_proto(0, (1,)), "type 0"),
        (_proto(20, (1,)), "type 20"),
        (_proto(99, (1,)), "type 99"),
        (_proto(STRING, (3,), tensor_content=b"\1"), "its shape takes 3 strings"),
        (_proto(STRING, (1,), tensor_content=b"\5ab"), "not those of its bytes"),
        (_proto(STRING, (1,), tensor_content=b"\xff" * 20), "damaged"),
    ],
)
def test_lengths_that_lie_are_refused_before_memory_is_taken(proto: Any, answer: str) -> None:
    assert answer in _refusal(proto)


def test_an_unknown_rank_is_refused() -> None:
    proto = TENSOR(dtype=1)
    proto.tensor_shape.unknown_rank = True
    assert "not known" in _refusal(proto)


@given(st.binary(max_size=200))
def test_random_bytes_are_a_tensor_or_a_refusal(data: bytes) -> None:
    proto = TENSOR()
    with suppress(DecodeError):
        proto.ParseFromString(data)
    size = 0
    with suppress(ServingError):
        size = tensors.read("x", proto).nbytes
    assert size <= tensors.LARGEST_FILL
