"""The scalars that a job writes for TensorBoard, read while it trains.

Of each attempt that is looked at, readers and curves are kept, so the next look reads only what is
new. Of a directory that others write to as well, only the files count that the attempt has made.
"""

import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from msgspec import Struct

from sublet.domain.job import EventLog
from sublet.event_file import EventFile
from sublet.page.curves import Curve, CurveRow, TagRow
from sublet.page.job_rows import shown_name

_MOST_ATTEMPTS = 8
_MOST_FILES = 64
"""Of one directory."""
_MOST_CURVES = 200
_AT_A_TIME = 0.3
"""Seconds of reading for one answer; the rest comes with the next."""
_NAME = re.compile(r"tfevents\.(\d{1,12})\.")
_PID = re.compile(r"\.(\d{1,10})\.\d{1,10}(?:\.v2)?$")
_EARLY = 2.0
"""Seconds that a file's name may be before its writer was seen to be made: names are rounded."""


class Scalars(Struct, frozen=True):
    """What is known of an attempt's scalars."""

    tags: tuple[TagRow, ...] = ()
    directories: tuple[str, ...] = ()
    """Where they are written."""
    faults: tuple[str, ...] = ()
    """What could not be read."""
    version: int = 0
    """Another one, if anything is new."""
    more: bool = False
    """Whether there is more already."""


class ScalarReader:
    """The attempts that were looked at last. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempts: OrderedDict[str, _Attempt] = OrderedDict()

    def read(self, attempt_id: str, logs: Sequence[EventLog], seen: int = 0) -> Scalars | None:
        """What an attempt has written; None if it is what was seen before."""
        with self._lock:
            attempt = self._attempts.pop(attempt_id, None) or _Attempt()
            self._attempts[attempt_id] = attempt
            while len(self._attempts) > _MOST_ATTEMPTS:
                self._attempts.popitem(last=False)
            attempt.read(logs, time.monotonic() + _AT_A_TIME)
            return None if attempt.version == seen and not attempt.more else attempt.scalars(logs)


class _Attempt:
    def __init__(self) -> None:
        self.version = 1
        self.more = False
        self._files: dict[str, EventFile] = {}
        self._curves: dict[tuple[str, str], Curve] = {}
        """By tag and directory."""
        self._faults: dict[str, str] = {}

    def read(self, logs: Sequence[EventLog], until: float) -> None:
        before = len(self._faults)
        for log in logs:
            for path in self._event_files(log):
                file = self._files.setdefault(path, EventFile(path))
                try:
                    for scalar in file.read(until):
                        self._add(log.directory, scalar.tag).add(scalar)
                        self.version += 1
                except OSError as error:
                    self._faults[path] = f"{path} cannot be read: {error.strerror}"
                if file.damaged:
                    self._faults[path] = f"{path} is damaged: what comes behind is not shown"
        self.version += len(self._faults) != before
        self.more = time.monotonic() >= until

    def _add(self, directory: str, tag: str) -> Curve:
        key = (tag, directory)
        if key not in self._curves and len(self._curves) >= _MOST_CURVES:
            self._faults[""] = f"more than {_MOST_CURVES} curves: the others are not shown"
            return Curve()
        return self._curves.setdefault(key, Curve())

    def _event_files(self, log: EventLog) -> list[str]:
        if "://" in log.directory:
            self._faults[log.directory] = f"{log.directory} is not on this machine"
            return []
        try:
            names = sorted(name for name in os.listdir(log.directory) if is_of(name, log))
        except OSError:
            return []  # It is made with the first event.
        return [os.path.join(log.directory, name) for name in names[-_MOST_FILES:]]

    def scalars(self, logs: Sequence[EventLog]) -> Scalars:
        directories = tuple(dict.fromkeys(log.directory for log in logs))
        runs = run_names(directories)
        tags = sorted({tag for tag, _ in self._curves})
        return Scalars(
            tuple(
                TagRow(
                    shown_name(tag),
                    tuple(
                        CurveRow(shown_name(runs[directory]), curve.points())
                        for directory in directories
                        if (curve := self._curves.get((tag, directory))) is not None
                    ),
                )
                for tag in tags
            ),
            tuple(map(shown_name, directories)),
            tuple(map(shown_name, list(self._faults.values())[:5])),
            self.version,
            self.more,
        )


def is_of(name: str, log: EventLog) -> bool:
    """Whether an event file was made by this process: by the number in its name if it has one,
    else by the time there."""
    found = _NAME.search(name)
    if found is None:
        return False
    if (process := _PID.search(name)) is not None:
        return int(process[1]) == log.pid
    return int(found[1]) >= log.since - _EARLY


def run_names(directories: Iterable[str]) -> dict[str, str]:
    """What to call the runs: what is different in their paths, as TensorBoard does."""
    known = list(dict.fromkeys(directories))
    try:
        common = os.path.commonpath(known) if len(known) > 1 else os.path.dirname(*known or [""])
    except ValueError:  # One is not on this machine.
        common = ""
    return {one: os.path.relpath(one, common) if common else one for one in known}
