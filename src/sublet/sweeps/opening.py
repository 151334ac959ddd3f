"""Opens the journal of a sweep where its user wants it, or in Sublet's home."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sublet.home import Home
from sublet.sweeps import reading
from sublet.sweeps.journal import Journal
from sublet.sweeps.records import Settings


@contextlib.contextmanager
def opened(directory: Path | None, name: str, settings: Settings) -> Iterator[Journal]:
    """The journal of a sweep, which has its entry in the list of recent ones."""
    id = reading.new_id()
    # A directory that is refused gets no entry.
    journal = None if directory is None else Journal.open(directory, id, name, settings)
    try:
        place = reading.enter(Home.find(), id, directory)
    except OSError:
        # A home that cannot be used: the sweep runs, and no page shows it.
        place = directory or Path(tempfile.mkdtemp(prefix="sublet-sweep-"))
    if journal is None:
        journal = Journal.open(place, id, name, settings)
    try:
        yield journal
    finally:
        journal.close()


def forget_if_nothing_ended(journal: Journal) -> None:
    """A request that was refused leaves a new directory as it was."""
    if not any(trial.over for trial in journal.sweep.trials):
        journal.forget()
