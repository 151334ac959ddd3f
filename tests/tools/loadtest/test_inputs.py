"""What a model is called with."""

from pathlib import Path

import numpy as np
import pytest

from sublet.engine.savedmodel_proto import Signature, TensorSpec
from sublet.errors import BadRequest
from sublet.tools.loadtest.inputs import make, read, rows_of

FLOAT, INT32, STRING, INT64, BOOL, HALF = 1, 3, 7, 9, 10, 19
PREDICT = "tensorflow/serving/predict"
Shape = tuple[int, ...] | None


def signature(method: str = PREDICT, **inputs: tuple[int, Shape]) -> Signature:
    specs = {name: TensorSpec(f"{name}:0", dtype, shape) for name, (dtype, shape) in inputs.items()}
    return Signature(method, specs, {"y": TensorSpec("y:0", FLOAT, (-1, 1))})


def test_inputs_have_the_types_of_the_signature_and_one_for_what_it_leaves_open() -> None:
    mixed = signature(a=(FLOAT, (-1, 28, -1)), b=(INT64, (-1,)), c=(BOOL, (-1, 2)), d=(HALF, (-1,)))
    first = make(mixed, {})[0]
    assert {name: (array.dtype.name, array.shape) for name, array in first.items()} == {
        "a": ("float32", (1, 28, 1)),
        "b": ("int64", (1,)),
        "c": ("bool", (1, 2)),
        "d": ("float16", (1,)),
    }


def test_calls_differ_and_whole_numbers_are_in_every_vocabulary() -> None:
    made = make(signature(ids=(INT32, (-1, 100)), x=(FLOAT, (-1, 4))), {})
    assert len({inputs["x"].tobytes() for inputs in made}) == len(made) > 1
    assert {int(one) for inputs in made for one in inputs["ids"].ravel()} == {0, 1}


def test_large_inputs_are_made_once() -> None:
    assert len(make(signature(x=(FLOAT, (-1, 4 << 20))), {})) == 1


def test_rows_are_the_first_dimension_of_every_input() -> None:
    two = signature(a=(FLOAT, (-1, 3)), b=(FLOAT, (-1,)))
    first = make(two, {}, rows=5)[0]
    assert (first["a"].shape, first["b"].shape) == ((5, 3), (5,))
    assert rows_of(first, two) == 5


def test_examples_are_empty_ones_and_other_strings_are_not() -> None:
    by_example = signature("tensorflow/serving/classify", inputs=(STRING, None))
    assert make(by_example, {}, rows=2)[0]["inputs"].tolist() == [b"", b""]
    assert make(signature(words=(STRING, (-1,))), {})[0]["words"].tolist() == [b"sublet"]


@pytest.mark.parametrize(
    ("shapes", "rows", "answer"),
    [
        ({"z": (1,)}, None, "--shape z: the signature has no such input. It has: x, y."),
        ({"x": (1, 4)}, None, "--shape x=1,4 does not fit: the input is ?,3."),
        ({"x": (3,)}, None, "does not fit"),
        ({"x": (2, 3)}, 4, "--rows 4, but --shape x says 2."),
        ({"x": (2, 3)}, None, "The inputs have different rows: x has 2, y has 1."),
    ],
)
def test_a_shape_that_does_not_fit_is_told_before_any_call(
    shapes: dict[str, tuple[int, ...]], rows: int | None, answer: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        make(signature(x=(FLOAT, (-1, 3)), y=(FLOAT, (-1,))), shapes, rows)
    assert answer in str(refused.value)


def test_an_input_of_any_shape_asks_for_one() -> None:
    anything = signature(x=(FLOAT, None))
    with pytest.raises(BadRequest, match="Say one: --shape x=1,28,28"):
        make(anything, {})
    assert make(anything, {"x": (2, 2)})[0]["x"].shape == (2, 2)


def test_rows_are_refused_where_there_is_no_batch_dimension() -> None:
    with pytest.raises(BadRequest, match="has no batch dimension"):
        make(signature(x=(FLOAT, ())), {}, rows=2)
    assert make(signature(x=(FLOAT, ())), {})[0]["x"].shape == ()


def test_real_inputs_are_called_in_turn_so_many_rows_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "real.npz"
    np.savez(path, x=np.arange(7.0).reshape(7, 1), s=np.array(["a", "bc", "d", "e", "f", "g", "h"]))
    made = read(path, signature(x=(FLOAT, (-1, 1)), s=(STRING, (-1,))), rows=3)
    assert [inputs["x"].ravel().tolist() for inputs in made] == [[0, 1, 2], [3, 4, 5]]
    assert made[0]["x"].dtype == np.float32
    assert made[0]["s"].tolist() == [b"a", b"bc", b"d"]


def test_a_file_that_does_not_fit_says_what_it_should_have(tmp_path: Path) -> None:
    wanted = signature(x=(FLOAT, (-1, 1)), z=(FLOAT, (-1, 1)))
    rows = np.zeros((2, 1))
    for arrays, answer in (
        ({"x": rows}, "has no array 'z'"),
        ({"x": rows, "z": rows, "q": rows}, "has an array 'q', which is no input"),
        ({"x": rows, "z": np.zeros((3, 1))}, "these rows: x 2, z 3"),
        ({"x": rows, "z": np.zeros((2, 2))}, "'z' is 2,2; the input is ?,1"),
        ({"x": rows, "z": np.array([["a"], ["b"]])}, "'z' has to be float32"),
        ({"x": rows[:0], "z": rows[:0]}, "at least 1"),
    ):
        path = tmp_path / "some.npz"
        np.savez(path, **arrays)
        with pytest.raises(BadRequest) as refused:
            read(path, wanted)
        assert answer in str(refused.value)


def test_a_file_that_is_none_is_refused_and_nothing_in_it_is_run(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "text.npz").write_text("no")
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04")
    np.savez(tmp_path / "pickled.npz", x=np.array([{}], object))
    for name in ("one.npy", "text.npz", "empty.npz", "cut.npz", "pickled.npz", "missing.npz"):
        with pytest.raises(BadRequest, match="Give real inputs"):
            read(tmp_path / name, signature(x=(FLOAT, (-1,))))
