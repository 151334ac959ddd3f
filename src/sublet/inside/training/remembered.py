"""What was found for a program before: how many rows fit, by the limit that it was found under.

One small file for each program, beside the ledger. It is no promise: a step that runs out of memory
corrects it, and without it everything is measured again.
"""

from __future__ import annotations

import contextlib
import json
import os

_MOST = 64
_SAME = 0.05
"""A limit that differs by less than this share is the same."""


class Remembered:
    """The file of this program; without a path nothing is remembered."""

    def __init__(self, path: str) -> None:
        self._path = path

    def get(self, key: str, limit: int) -> int:
        """The rows that were found under such a limit; 0 if nothing was."""
        for known, rows, under in self._read():
            if known == key and abs(under - limit) <= _SAME * limit:
                return rows
        return 0

    def keep(self, key: str, rows: int, limit: int) -> None:
        """Keep what was found, in place of what was known of the same under any limit."""
        if not self._path:
            return
        others = [one for one in self._read() if one[0] != key]
        draft = f"{self._path}.{os.getpid()}"
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            with open(draft, "w", encoding="utf-8") as file:
                json.dump([*others[-_MOST + 1 :], (key, rows, limit)], file)
            os.replace(draft, self._path)

    def _read(self) -> list[tuple[str, int, int]]:
        try:
            with open(self._path, encoding="utf-8") as file:
                found = [(str(k), int(r), int(u)) for k, r, u in json.load(file)]
            return [one for one in found if one[1] > 0]
        except (OSError, ValueError, TypeError):
            return []
