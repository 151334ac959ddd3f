"""Signatures: what may be batched, and calls that come too late."""

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.engine.savedmodel_proto import Signature, TensorSpec
from sublet.engine.signatures import Bound, Gate, Unloaded, aligned, batchable

FREE, FIXED, UNKNOWN = (-1, 3), (1, 3), None
PREDICT, REGRESS = "tensorflow/serving/predict", "tensorflow/serving/regress"


def signature(
    inputs: tuple[int, ...] | None, outputs: tuple[int, ...] | None, method: str = PREDICT
) -> Signature:
    return Signature(
        method, {"x": TensorSpec("x:0", 1, inputs)}, {"y": TensorSpec("y:0", 1, outputs)}
    )


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (signature(FREE, FREE), True),
        (signature(FIXED, FREE), False),
        (signature(FREE, FIXED), False),
        (signature(FREE, ()), False),
        (signature(UNKNOWN, FREE), False),
        (signature(UNKNOWN, FREE, REGRESS), True),
        (Signature(PREDICT, {}, {"y": TensorSpec("y:0", 1, FREE)}), False),
    ],
)
def test_rows_are_batched_where_the_first_dimension_of_everything_is_free(
    one: Signature, expected: bool
) -> None:
    assert batchable(one) is expected


def test_the_value_of_a_variable_has_its_plain_type() -> None:
    one = Signature(PREDICT, {}, {"y": TensorSpec("counter:0", 101, ())})
    number: Any = np.float32(3)
    bound = Bound("f", one, lambda _: [number], Gate(), stateful=True, batchable=False)
    assert bound.outputs["y"].dtype == 1
    result = bound.call({})["y"]
    assert isinstance(result, np.ndarray)
    assert result == 3


def test_a_stateful_model_shares_no_memory_with_its_callers() -> None:
    kept: list[np.ndarray] = []

    def run(inputs: tuple[np.ndarray, ...]) -> list[np.ndarray]:
        kept.extend(inputs)
        return list(inputs)

    x = aligned(np.ones(4))
    stateful = Bound("f", signature(FREE, FREE), run, Gate(), stateful=True, batchable=False)
    result = stateful.call({"x": x})["y"]
    assert not np.shares_memory(kept[-1], x)
    assert not np.shares_memory(kept[-1], result)
    plain = Bound("f", signature(FREE, FREE), run, Gate(), stateful=False, batchable=True)
    assert np.shares_memory(plain.call({"x": x})["y"], x)


@given(
    st.sampled_from(["f4", "i8", "?", "u1", "c16"]),
    st.lists(st.integers(0, 5), max_size=3),
    st.integers(0, 63),
    st.booleans(),
)
def test_aligned_arrays_are_equal_and_those_that_were_are_the_same(
    dtype: str, shape: list[int], shift: int, turned: bool
) -> None:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 128, np.uint8)
    begin = -memory.ctypes.data % 64 + shift
    memory[begin : begin + size] = np.arange(size) % 2
    array = memory[begin : begin + size].view(dtype).reshape(shape)
    array = array.T if turned else array
    result = aligned(array)
    assert not size or result.ctypes.data % 64 == 0
    assert result.flags.c_contiguous
    np.testing.assert_array_equal(result, array)
    assert aligned(result) is result
    assert not np.shares_memory(aligned(result, copy=True), result)


def test_closing_waits_for_calls_that_run_and_refuses_those_that_come_later() -> None:
    gate, running, go_on = Gate(), threading.Event(), threading.Event()
    order: list[str] = []

    def run(inputs: object) -> list[np.ndarray]:
        running.set()
        assert go_on.wait(60)
        order.append("called")
        return [np.ones(1)]

    bound = Bound("f", signature(FREE, FREE), run, gate, stateful=False, batchable=True)
    caller = threading.Thread(target=bound.call, args=({"x": np.ones(1)},))
    caller.start()
    assert running.wait(60)

    def close() -> None:
        gate.close()
        order.append("closed")

    closer = threading.Thread(target=close)
    closer.start()
    while not gate.closed:
        threading.Event().wait(0.001)
    with pytest.raises(Unloaded):
        bound.call({"x": np.ones(1)})
    go_on.set()
    closer.join()
    caller.join()
    assert order == ["called", "closed"]
