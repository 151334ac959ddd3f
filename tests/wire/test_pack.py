"""Plain values as msgpack."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.wire.pack import pack

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.binary(), inner),
    max_leaves=30,
)


@given(values)
def test_what_is_packed_is_what_msgspec_reads(value: object) -> None:
    try:
        expected = msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    except OverflowError:
        return  # A key that msgpack has no room for.
    assert msgspec.msgpack.decode(pack(value)) == expected


@pytest.mark.parametrize("length", [15, 16, 31, 32, 255, 256, 65535, 65536])
def test_lengths_around_each_border_survive(length: int) -> None:
    for value in ("x" * length, b"x" * length, [1] * length, {n: n for n in range(length)}):
        assert msgspec.msgpack.decode(pack(value)) == value


def test_tuples_arrive_as_lists() -> None:
    assert msgspec.msgpack.decode(pack((1, (b"two",)))) == [1, [b"two"]]


@pytest.mark.parametrize("value", [object(), {1, 2}, [1 + 2j]])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="has no place in a message"):
        pack(value)
