"""Weights in a sweep's directory: of its best trial, and of trials between two rungs."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_BEST, _STATES = "best.npz", "states"


class Saved:
    """Arrays of trials, each file whole or not there. NumPy is loaded when it is needed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._best: int | None = None

    def put_best(self, number: int, weights: Sequence[Any]) -> None:
        """Keep the weights of this trial as the best."""
        if number != self._best:
            self._put(self._directory / _BEST, number, weights)
            self._best = number

    def best(self, number: int) -> list[Any] | None:
        """The weights of this trial, if it is the best one that was kept."""
        return self._get(self._directory / _BEST, number)

    def put_state(self, number: int, epochs: int, state: Sequence[Any]) -> None:
        """Keep a trial between two rungs."""
        (self._directory / _STATES).mkdir(exist_ok=True)
        self._put(self._file(number), epochs, state)

    def state(self, number: int) -> tuple[int, list[Any], bool] | None:
        """A trial as it was kept last: its epochs, its state, and whether that is another's."""
        found = self._read(self._file(number))
        return None if found is None else (abs(found[0]), found[1], found[0] < 0)

    def copy_state(self, source: int, target: int) -> None:
        """Let a trial go on with the state of another one."""
        if (found := self._read(self._file(source))) is not None:
            self._put(self._file(target), -abs(found[0]), found[1])

    def drop_states(self, numbers: Sequence[int]) -> None:
        """These trials are over."""
        for number in numbers:
            self._file(number).unlink(missing_ok=True)

    def _file(self, number: int) -> Path:
        return self._directory / _STATES / f"{number}.npz"

    def _put(self, path: Path, mark: int, arrays: Sequence[Any]) -> None:
        import numpy as np

        fresh = path.with_suffix(".new")
        with fresh.open("wb") as file:
            np.savez(file, np.int64(mark), *arrays)
        os.replace(fresh, path)

    def _get(self, path: Path, mark: int) -> list[Any] | None:
        """The arrays of a file, if it has this mark."""
        found = self._read(path)
        return found[1] if found is not None and found[0] == mark else None

    def _read(self, path: Path) -> tuple[int, list[Any]] | None:
        """The mark and the arrays of a file; None if it cannot be read."""
        import zipfile

        import numpy as np

        try:
            with np.load(path, allow_pickle=False) as file:
                mark, *arrays = (file[f"arr_{place}"] for place in range(len(file.files)))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None
        return int(mark), arrays
