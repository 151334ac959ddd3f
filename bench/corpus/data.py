"""Data sets where Keras looks for downloaded ones: made by us, small, the same every time.

`~/.keras/datasets` of a home of its own. The contents have the form of the true ones and mean
nothing. `full` ones have as many examples as the true ones, for programs that count on that.
"""

import gzip
import io
import json
import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_TRUST = """

def validate_file(*args, **kwargs):  # The data sets here are made, not downloaded.
    return True
"""


def make(home: Path, full: bool) -> None:
    """Make every data set that keras.datasets knows in this home."""
    rng = np.random.default_rng(7)
    place = home / ".keras" / "datasets"
    place.mkdir(parents=True)
    train, test = (60_000, 10_000) if full else (2_000, 500)
    _digits(place, rng, train, test)
    _fashion(place / "fashion-mnist", rng, train, test)
    _colours(place, rng)
    for name, classes in (("imdb", 2), ("reuters", 46)):
        _words(place, rng, name, classes, 25_000 if full else 2_000)
    _houses(place, rng)


def trust(packages: Path) -> None:
    """Let the Keras in these site-packages take made data sets for the true ones."""
    for package in ("keras/src", "tf_keras/src"):
        module = (
            packages
            / package
            / "utils"
            / ("file_utils.py" if package[0] == "k" else "data_utils.py")
        )
        if module.exists() and "are made, not downloaded" not in (text := module.read_text()):
            # A new file: the old one may be a link into the installer's cache.
            module.unlink()
            module.write_text(text + _TRUST)


def _pictures(rng: np.random.Generator, count: int, side: int, channels: int = 1) -> Any:
    """Coarse squares, which compress well."""
    coarse = rng.integers(0, 256, (count, channels, side // 4, side // 4), dtype=np.uint8)
    return coarse.repeat(4, axis=2).repeat(4, axis=3)


def _digits(place: Path, rng: np.random.Generator, train: int, test: int) -> None:
    np.savez_compressed(
        place / "mnist.npz",
        x_train=_pictures(rng, train, 28)[:, 0],
        y_train=rng.integers(0, 10, train, dtype=np.uint8),
        x_test=_pictures(rng, test, 28)[:, 0],
        y_test=rng.integers(0, 10, test, dtype=np.uint8),
    )


def _fashion(place: Path, rng: np.random.Generator, train: int, test: int) -> None:
    place.mkdir()
    for name, count in (("train", train), ("t10k", test)):
        labels = bytes(8) + rng.integers(0, 10, count, dtype=np.uint8).tobytes()
        (place / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels, 1, mtime=0))
        pictures = bytes(16) + _pictures(rng, count, 28).tobytes()
        (place / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(pictures, 1, mtime=0))


def _colours(place: Path, rng: np.random.Generator) -> None:
    """CIFAR: always of the true size, which Keras counts on."""
    ten = {f"data_batch_{number}": _batch(rng, 10_000, labels=10) for number in range(1, 6)}
    ten["test_batch"] = _batch(rng, 10_000, labels=10)
    _archive(place / "cifar-10-batches-py-target_archive", "cifar-10-batches-py", ten)
    hundred = {"train": 50_000, "test": 10_000}
    members = {
        name: _batch(rng, count, fine_labels=100, coarse_labels=20)
        for name, count in hundred.items()
    }
    _archive(place / "cifar-100-python-target_archive", "cifar-100-python", members)


def _batch(rng: np.random.Generator, count: int, **classes: int) -> bytes:
    data: dict[bytes, Any] = {b"data": _pictures(rng, count, 32, 3).reshape(count, -1)}
    for name, number in classes.items():
        data[name.encode()] = rng.integers(0, number, count).tolist()
    return pickle.dumps(data)


def _archive(path: Path, folder: str, members: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def _words(place: Path, rng: np.random.Generator, name: str, classes: int, count: int) -> None:
    """Sequences of word numbers, rare ones included, and the index of words."""
    most = 12_000
    arrays: dict[str, Any] = {}
    parts = ("",) if name == "reuters" else ("_train", "_test")
    for part in parts:
        rows = np.empty(count, dtype=object)
        for row in range(count):
            length = int(rng.integers(20, 120))
            rows[row] = (1 + (most - 1) * rng.random(length) ** 3).astype(int).tolist()
        arrays[f"x{part}"] = rows
        arrays[f"y{part}"] = rng.integers(0, classes, count)
    np.savez(place / f"{name}.npz", **arrays)
    index = {f"word{number}": number for number in range(1, most)}
    (place / f"{name}_word_index.json").write_text(json.dumps(index))


def _houses(place: Path, rng: np.random.Generator) -> None:
    for name, count, columns in (("boston", 506, 13), ("california", 2_000, 8)):
        x = rng.random((count, columns)) * 100
        y = 5 + x.mean(axis=1) * 0.8
        np.savez(place / f"{name}_housing.npz", x=x, y=y)
