"""What a model is called with when it is measured: made up from its signature, or from a file.

Pure NumPy. Checks what the user says against the signature, so that a wrong shape is reported
before anything is started or called.
"""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sublet.channel import tensors
from sublet.channel.records import Malformed
from sublet.channel.tensors import Array
from sublet.engine.savedmodel_proto import Signature, TensorSpec
from sublet.engine.signatures import BY_EXAMPLE, batchable
from sublet.errors import BadRequest, ServingError
from sublet.serving.client.call_arguments import fit

_VARIANTS = 8
"""Different inputs, so that no cache answers; one will do if they are large."""
_LARGE = 8 << 20
_DATA = "Give real inputs: --data FILE.npz, with an array for each input."

Arrays = dict[str, Array]


def make(
    signature: Signature, shapes: Mapping[str, tuple[int, ...]], rows: int | None = None
) -> list[Arrays]:
    """Inputs that fit the signature: unknown dimensions are 1, the first one is `rows`."""
    for name in shapes:
        if name not in signature.inputs:
            raise BadRequest(
                f"--shape {name}: the signature has no such input.",
                f"It has: {', '.join(signature.inputs) or 'none'}.",
            )
    if rows not in (None, 1) and not batchable(signature):
        raise BadRequest(
            f"--rows {rows}: this signature has no batch dimension.",
            "The first dimension of each input and output has to be free. Leave --rows out.",
        )
    whole = {
        name: _shape(name, spec, shapes.get(name), rows) for name, spec in signature.inputs.items()
    }
    _check_rows(whole, batchable(signature))
    draw = np.random.default_rng(0)
    # Nothing at all is an empty example.
    word = b"" if signature.method in BY_EXAMPLE else b"sublet"
    made: list[Arrays] = []
    while len(made) < _VARIANTS:
        made.append(
            {
                name: _draw(draw, name, spec, whole[name], word)
                for name, spec in signature.inputs.items()
            }
        )
        if sum(array.nbytes for array in made[0].values()) > _LARGE:
            break
    return made


def read(path: Path, signature: Signature, rows: int | None = None) -> list[Arrays]:
    """Inputs from a `.npz` file: all its rows in turn, so many for each call."""
    arrays = {}
    for name, array in _load(path).items():
        if name not in signature.inputs:
            raise BadRequest(
                f"{path} has an array {name!r}, which is no input.",
                f"The inputs are: {', '.join(signature.inputs) or 'none'}.",
            )
        arrays[name] = _fitted(path, name, array, signature.inputs[name])
    if missing := [name for name in signature.inputs if name not in arrays]:
        raise BadRequest(
            f"{path} has no array {missing[0]!r}.",
            f"It needs one for each input: {', '.join(signature.inputs)}.",
        )
    if not batchable(signature):
        if rows not in (None, 1):
            raise BadRequest(
                f"--rows {rows}: this signature has no batch dimension.", "Leave --rows out."
            )
        return [arrays]
    counts = {name: len(array) for name, array in arrays.items()}
    count, size = min(counts.values()), rows or 1
    if len(set(counts.values())) > 1 or count < size:
        listed = ", ".join(f"{name} {number}" for name, number in counts.items())
        raise BadRequest(
            f"{path}: the arrays have these rows: {listed}.",
            f"All need the same number, and at least {size}.",
        )
    return [
        {name: np.ascontiguousarray(array[at : at + size]) for name, array in arrays.items()}
        for at in range(0, count - size + 1, size)
    ]


def rows_of(inputs: Arrays, signature: Signature) -> int:
    """Rows of one call; 1 if the signature knows no rows."""
    if not batchable(signature):
        return 1
    return min((len(array) for array in inputs.values() if array.ndim), default=1)


def _shape(
    name: str, spec: TensorSpec, said: tuple[int, ...] | None, rows: int | None
) -> tuple[int, ...]:
    if said is None:
        if spec.shape is None and spec.dtype == tensors.DT_STRING:
            return (rows or 1,)
        if spec.shape is None:
            raise BadRequest(
                f"The input {name!r} may have any shape.", f"Say one: --shape {name}=1,28,28."
            )
        sizes = [max(1, size) if size else 0 for size in spec.shape]
        if rows and spec.shape[:1] == (-1,):
            sizes[0] = rows
        return tuple(sizes)
    if spec.shape is not None and not _fits(said, spec.shape):
        raise BadRequest(
            f"--shape {name}={','.join(map(str, said))} does not fit: the input is "
            f"{shown(spec.shape)}.",
            "Write the whole shape, with the rows of a call first.",
        )
    if rows and said and said[0] != rows:
        raise BadRequest(
            f"--rows {rows}, but --shape {name} says {said[0]}.", "Leave one of them out."
        )
    return said


def _fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) == len(wanted) and all(
        want in (-1, size) for size, want in zip(shape, wanted, strict=True)
    )


def _check_rows(shapes: Mapping[str, tuple[int, ...]], together: bool) -> None:
    rows = {name: shape[0] for name, shape in shapes.items() if shape}
    if together and len(set(rows.values())) > 1:
        listed = ", ".join(f"{name} has {number}" for name, number in rows.items())
        raise BadRequest(
            f"The inputs have different rows: {listed}.", "Give each --shape the same first number."
        )


def shown(shape: Sequence[int] | None) -> str:
    """A shape as people write it: `?,28,28`."""
    if shape is None:
        return "of any shape"
    return ",".join("?" if size < 0 else str(size) for size in shape) or "a single number"


def _draw(
    draw: np.random.Generator, name: str, spec: TensorSpec, shape: tuple[int, ...], word: bytes
) -> Array:
    try:
        dtype = tensors.dtype_of(spec.dtype)
    except Malformed:
        raise BadRequest(
            f"The input {name!r} is of a type that cannot be sent (DataType {spec.dtype}).",
            "Measure another --signature.",
        ) from None
    if dtype.kind == "O":
        words = np.empty(shape, object)
        words.fill(word)
        return words
    if dtype.kind in "iub":
        # 0 and 1 are in every vocabulary.
        return draw.integers(0, 2, shape).astype(dtype)
    return draw.random(shape).astype(dtype)


def _load(path: Path) -> dict[str, Array]:
    try:
        with path.open("rb") as opened:
            file = np.load(opened, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise BadRequest(f"--data {path} is one array without a name.", _DATA)
            with file:
                return {name: file[name] for name in file.files}
    except OSError as error:
        raise BadRequest(f"--data {path}: {error.strerror or error}.", _DATA) from None
    except (ValueError, EOFError, zipfile.BadZipFile):
        raise BadRequest(f"--data {path} is no .npz file that can be read.", _DATA) from None


def _fitted(path: Path, name: str, array: Any, spec: TensorSpec) -> Array:
    try:
        fitted = fit(name, array, spec)
    except ServingError as error:
        raise BadRequest(f"{path}: {error.message}", _DATA) from None
    if fitted.dtype.kind == "O":
        flat = [one.encode() if isinstance(one, str) else one for one in fitted.ravel()]
        fitted = np.array(flat, object).reshape(fitted.shape)
    if spec.shape is not None and not _fits(fitted.shape, spec.shape):
        raise BadRequest(
            f"{path}: {name!r} is {shown(fitted.shape)}; the input is {shown(spec.shape)}.",
            "Save it with the rows first.",
        )
    return fitted
