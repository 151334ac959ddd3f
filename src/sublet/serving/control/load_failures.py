"""Versions that could not be served: how often each was tried, and when it is tried again.

Pure bookkeeping, without a clock of its own: times are seconds of the caller's.
"""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from sublet.serving.control.blame import Key
from sublet.serving.control.model_directories import ModelDirectory


class Retries(Struct, frozen=True):
    """How often, and after how many seconds, a version that failed is tried again."""

    most: int = 5
    wait: float = 60.0


class Forgiven(NamedTuple):
    """Versions that are worth another try."""

    again: list[Key]  # Because it is time.
    others: list[Key]
    """Because their files are others now, or nobody wants them: nothing is held against them."""


class Failures:
    """What is known of each version that failed; forgotten when its files change."""

    def __init__(self, retries: Retries) -> None:
        self.retries = retries
        self._failures: dict[Key, _Failure] = {}
        self._crashes: dict[Key, int] = {}

    def crashes(self, key: Key) -> int:
        """How often it was found to be why engines have ended."""
        return self._crashes.get(key, 0)

    def crashed(self, key: Key) -> None:
        self._crashes[key] = self.crashes(key) + 1

    def failed(self, key: Key, mark: str, now: float, again: bool = True) -> None:
        before = self._failures.get(key)
        tries = before.tries + 1 if before is not None and before.mark == mark else 0
        self._failures[key] = _Failure(mark, tries, self._due(tries, now) if again else None)

    def put_away(self, key: Key, mark: str, now: float, again: bool) -> bool:
        """It was served, and has ended engines; whether it will be tried again as it is."""
        tries = self.crashes(key)
        self.crashed(key)
        due = self._due(tries, now) if again else None
        self._failures[key] = _Failure(mark, tries, due)
        return due is not None

    def worked(self, key: Key) -> None:
        self._failures.pop(key, None)

    def dropped(self, key: Key) -> None:
        """It is not served any more, and was until now."""
        self._crashes.pop(key, None)

    def forgive(self, name: str, directories: Mapping[int, ModelDirectory], now: float) -> Forgiven:
        """The versions of a model that are to be tried again; each is named once."""
        forgiven = Forgiven([], [])
        for key, failure in list(self._failures.items()):
            if key[0] != name:
                continue
            directory = directories.get(key[1])
            if directory is None or directory.mark != failure.mark:
                forgiven.others.append(key)
                del self._failures[key]
                self._crashes.pop(key, None)
            elif failure.due is not None and failure.due <= now:
                forgiven.again.append(key)
                self._failures[key] = replace(failure, due=None)
        return forgiven

    def _due(self, tries: int, now: float) -> float | None:
        """When a version that failed so often before is tried again."""
        return now + self.retries.wait if tries < self.retries.most else None


class _Failure(Struct, frozen=True):
    mark: str
    tries: int
    due: float | None
    """When to try again; None for never, unless its files change."""
