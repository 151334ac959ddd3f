"""Objects between processes: what is large is shared, all else is as pickle does it."""

import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.formats import pickle_transport

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def passed(pair: Pair, value: Any) -> Any:
    pickle_transport.send(pair[0], 7, 42, pickle_transport.pack(value))
    packet = pickle_transport.receive(pair[1])
    assert packet is not None
    assert (packet.kind, packet.call) == (7, 42)
    return pickle_transport.unpack(packet)


@given(
    st.recursive(
        st.none() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_value_arrives_as_it_was(value: Any) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert passed((ours, theirs), value) == value


@pytest.mark.parametrize("size", [1, 32 * 1024 - 1, 32 * 1024, 32 * 1024 + 1, 5_000_000])
def test_a_pickle_of_any_size_arrives(pair: Pair, size: int) -> None:
    assert passed(pair, "x" * size) == "x" * size


def test_arrays_small_and_large_arrive_together(pair: Pair) -> None:
    """Large ones beside the packet, each at its own place."""
    arrays = [np.arange(n, dtype="float32") for n in (0, 1, 100, 10_000, 99_999, 1_000_003)]
    arrived = passed(pair, arrays)
    for before, after in zip(arrays, arrived, strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_large_array_is_not_copied_by_who_receives_it(pair: Pair) -> None:
    """It lies in the shared memory itself, can be written, and is aligned for TensorFlow."""
    array = np.arange(1_000_000, dtype="float64")
    arrived = passed(pair, array)
    assert not arrived.flags.owndata
    assert arrived.flags.writeable
    assert arrived.ctypes.data % 64 == 0
    arrived[0] = 5.0
    assert array[0] == 0.0


def test_odd_shapes_and_types_of_arrays_arrive(pair: Pair) -> None:
    fortran = np.asfortranarray(np.random.default_rng(0).random((300, 400)))
    strided = np.arange(1_000_000)[::3]
    words = np.array(["a", "bb"], dtype=object)
    for array in (fortran, strided, words, np.array(3.5), np.zeros((0, 7))):
        np.testing.assert_array_equal(passed(pair, array), array)


def test_a_lambda_and_what_it_refers_to_arrive(pair: Pair) -> None:
    factor = 3
    assert passed(pair, lambda x: factor * x)(5) == 15


def test_an_end_is_seen(pair: Pair) -> None:
    pair[0].close()
    assert pickle_transport.receive(pair[1]) is None
