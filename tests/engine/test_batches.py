"""Arrays of requests become arrays of a batch, and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.channel.tensors import Array
from sublet.engine import batches
from sublet.engine.model_options import Options, powers
from sublet.engine.model_queue import ModelQueue
from sublet.engine.requests import Batch, BatchKind, Part, Request
from sublet.errors import ServingError
from support.numpy_engine import floats

KIND = BatchKind("rows", ("x",))


def batch(arrays: list[Array], **options: object) -> Batch:
    parts = [Part(Request(KIND, len(a), 0.0, arrays=[a]), 0, len(a)) for a in arrays]
    return Batch(ModelQueue("m", 1, Options.read(options)), KIND, parts, sum(map(len, arrays)), 0)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.booleans())
def test_each_request_gets_its_own_rows_back(sizes: list[int], padded: bool) -> None:
    arrays = [np.full((size, 3), n, np.float32) for n, size in enumerate(sizes)]
    one = batch(arrays, allowed_batch_sizes=powers(64) if padded else ())
    (joined,) = batches.gather(one)
    size = one.queue.options.padded(one.rows)
    assert joined.shape == (size, 3)
    for array, (back,) in zip(arrays, batches.scatter([joined * 1], one, size), strict=True):
        np.testing.assert_array_equal(array, back)


def test_one_request_is_not_copied() -> None:
    array = np.ones((4, 3), np.float32)
    (joined,) = batches.gather(batch([array]))
    assert joined is array


def test_a_joined_batch_can_be_used_by_tensorflow_as_it_is() -> None:
    for rows in range(1, 9):
        (joined,) = batches.gather(batch([np.ones((rows, 7), np.float32)] * 2))
        assert joined.ctypes.data % 64 == 0
        assert joined.flags.c_contiguous


def test_what_fills_a_batch_up_is_a_row_that_is_real() -> None:
    (joined,) = batches.gather(batch([floats([[1], [2], [3]])], allowed_batch_sizes=[8]))
    assert joined.ravel().tolist() == [1, 2, 3, 3, 3, 3, 3, 3]
    words = np.array([b"a", b"b"], object)
    (joined,) = batches.gather(batch([words, words[:1]], allowed_batch_sizes=[4]))
    assert joined.tolist() == [b"a", b"b", b"a", b"a"]


def test_inputs_of_different_lengths_are_filled_up() -> None:
    (joined,) = batches.gather(batch([floats([[1, 2]]), floats([[3]])]))
    assert joined.tolist() == [[1, 2], [3, 0]]
    (joined,) = batches.gather(
        batch([np.array([[b"a"]], object), np.array([[b"b", b"c"]], object)])
    )
    assert joined.tolist() == [[b"a", b""], [b"b", b"c"]]


def test_what_one_request_gets_is_its_own_whether_it_has_rows_or_not() -> None:
    frames = np.ones((2, 4), np.float32)
    assert batches.scatter([frames], batch([np.ones(8, np.float32)]), 8) == [[frames]]


def test_outputs_without_a_row_for_each_row_are_an_error() -> None:
    one = batch([np.ones((2, 1), np.float32)] * 2)
    for wrong in (np.float32(3), np.ones((1, 4), np.float32)):
        with pytest.raises(ValueError, match="rows"):
            batches.scatter([np.asarray(wrong)], one, 4)


def test_pieces_are_put_together_in_their_order() -> None:
    results = [(2, [np.array([2, 3])]), (0, [np.array([0, 1])]), (4, [np.array([4])])]
    assert [array.tolist() for array in batches.assemble(results)] == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_batch_size": 0},
        {"max_batch_size": "8"},
        {"max_batch_size": True},
        {"batch_timeout_micros": -1},
        {"weight": 0},
        {"latency_target_ms": 0},
        {"allowed_batch_sizes": [4, 2]},
        {"allowed_batch_sizes": [0, 2]},
        {"allowed_batch_sizes": 4},
        {"weight": float("inf")},
        {"priority": "high"},
        {"idle_seconds": "a"},
        {"load_timeout": -1},
        {"pin": "no"},
        {"tags": "serve"},
        {"warm_up_rows": 4},
        {"allowed_batch_sizes": [2, 4], "max_batch_size": 8},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ServingError, match=f"The option ({'|'.join(wrong)}) "):
        Options.read(wrong)


def test_sizes_are_rounded_up_to_one_that_is_allowed() -> None:
    assert powers(12) == (1, 2, 4, 8, 12)
    assert Options.read({"max_batch_size": 12}, few_shapes=True).padded(5) == 8
    assert Options.read({"max_batch_size": 12}).padded(5) == 5
    options = Options.read({"allowed_batch_sizes": [4, 16]})
    assert [options.padded(rows) for rows in (1, 4, 5, 16)] == [4, 4, 16, 16]
    assert options.largest == 16
