"""A sweep's directory: what it is, and what has happened, each event a line of JSON.

    sweep.json       its settings and its name
    journal.jsonl    the events of `records`, appended, never changed
    best.npz         the weights of the best trial so far, of a sweep over models

A line that a killed process has left unfinished is no harm: readers ignore it, and the next run
begins a new line. One process at a time writes; a second one is refused.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from sublet.errors import BadRequest, WorldError
from sublet.sweeps import records
from sublet.sweeps.records import Event, Settings, Sweep

DOCUMENT, JOURNAL, LOCK = "sweep.json", "journal.jsonl", "lock"
FORMAT = 1
_DECODER: "msgspec.json.Decoder[Event]" = msgspec.json.Decoder(Event)
_ENCODER = msgspec.json.Encoder()


class Document(Struct, frozen=True):
    """The content of `sweep.json`."""

    format: int
    id: str
    name: str
    began: float
    settings: Settings


class Journal:
    """Appends events to a directory and knows the sweep as they tell it. Used by one thread.

    Open it with `open`: only one process at a time has it.
    """

    def __init__(self, directory: Path, sweep: Sweep, lock: int) -> None:
        self.directory = directory
        self.sweep = sweep
        self._fresh = not sweep.trials
        self._lock = lock
        self._file = os.open(
            directory / JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        if os.fstat(self._file).st_size:
            os.write(self._file, b"\n")  # Ends a torn line; an empty one means nothing.

    @classmethod
    def open(cls, directory: Path, id: str, name: str, settings: Settings) -> "Journal":
        """Begin a sweep in this directory, or go on with the one that is there.

        Raises BadRequest if that is another sweep, and says what differs.
        """
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise WorldError(
                f"{directory} cannot be used: {error.strerror}.", "Name another directory."
            ) from error
        try:
            _take(lock, directory)
            sweep = _begin(directory, id, name, settings)
            journal = cls(directory, sweep, lock)
        except BaseException:
            os.close(lock)
            raise
        journal.append([records.RunBegan(os.getpid(), time.time())])
        return journal

    def append(self, events: Iterable[Event]) -> None:
        """Write these events, all of them in one piece, and take them in."""
        events = list(events)
        if not events:
            return
        data = b"".join(_ENCODER.encode(event) + b"\n" for event in events)
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            raise WorldError(
                f"The sweep's journal in {self.directory} cannot be written: {error.strerror}.",
                "Free some space, and start the sweep again: it goes on from there.",
            ) from error
        for event in events:
            self.sweep = records.apply(self.sweep, event)

    def forget(self) -> None:
        """Leave the directory as it was, if the sweep began in this run."""
        if self._fresh:
            for name in (JOURNAL, DOCUMENT, LOCK):
                (self.directory / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # It was there before, with files of others.
                self.directory.rmdir()

    def close(self) -> None:
        """Let others have the directory."""
        os.close(self._file)
        os.close(self._lock)


def read(directory: Path) -> Sweep | None:
    """The sweep in this directory as far as it has come; None if there is none."""
    document = _document(directory)
    if document is None:
        return None
    sweep = Sweep(
        id=document.id,
        directory=str(directory),
        name=document.name,
        settings=document.settings,
        began=document.began,
        updated=document.began,
    )
    for event in _events(directory):
        sweep = records.apply(sweep, event)
    if sweep.state == "running" and not is_held(directory):
        sweep = msgspec.structs.replace(sweep, state="stopped")
    return sweep


def is_held(directory: Path) -> bool:
    """Whether a process works on the sweep now."""
    try:
        lock = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _take(lock: int, directory: Path) -> None:
    # Readers hold it for a moment, to see whether it is held.
    deadline = time.monotonic() + 1
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise BadRequest(
                    f"Another process runs the sweep in {directory}.",
                    "Wait for it, or name another directory.",
                ) from None
            time.sleep(0.01)


def _begin(directory: Path, id: str, name: str, settings: Settings) -> Sweep:
    found = read(directory)
    if found is not None:
        if differences := _differences(found.settings, settings):
            raise BadRequest(
                f"{directory} has another sweep: {'; '.join(differences)}.",
                "Name another directory, or remove this one to start over.",
            )
        return found
    if any(entry.name != LOCK for entry in directory.iterdir()):
        raise BadRequest(
            f"{directory} has files, but no sweep.", "Name an empty or a new directory."
        )
    document = Document(FORMAT, id, name, time.time(), settings)
    fresh = directory / f"{DOCUMENT}.new"
    fresh.write_bytes(_ENCODER.encode(document))
    fresh.replace(directory / DOCUMENT)
    return Sweep(id, str(directory), name, settings, document.began, document.began)


def _differences(before: Settings, now: Settings) -> list[str]:
    """What is not the same, in words. Both are compared as JSON knows them."""
    old, new = (json.loads(_ENCODER.encode(one)) for one in (before, now))
    old |= old.pop("options")
    new |= new.pop("options")
    return [
        f"{name.replace('_', ' ')} was {_short(old.get(name))}, and is {_short(new.get(name))}"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:199]}…"


def _document(directory: Path) -> Document | None:
    try:
        document = msgspec.json.decode((directory / DOCUMENT).read_bytes(), type=Document)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError) as wrong:
        raise WorldError(
            f"{directory / DOCUMENT} cannot be read: {wrong}.", "Remove the directory."
        ) from None
    if document.format != FORMAT:
        raise BadRequest(
            f"{directory} has a sweep of another version of Sublet.", "Name another directory."
        )
    return document


def _events(directory: Path) -> Iterator[Event]:
    """The events of a journal; lines that make no sense count as none."""
    try:
        data = (directory / JOURNAL).read_bytes()
    except FileNotFoundError:
        return
    for line in data.split(b"\n"):
        if line:
            try:
                yield _DECODER.decode(line)
            except msgspec.MsgspecError:
                continue
