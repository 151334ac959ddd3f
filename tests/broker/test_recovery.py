"""Mending a damaged ledger, with real damage."""

import re
from pathlib import Path

import msgspec
import pytest

from sublet.broker.ledger import Ledger
from sublet.broker.recovery import recover
from sublet.domain.job import Finished, Job, Outcome, Starting
from sublet.home import Home
from sublet.units import MiB
from support.jobs import job, kept, lease, running

PAGE = 4096
NOTES = b"These are somebody's notes.\n" * 400
DONE = Finished(9.0, Outcome("exited", 0))
JOBS = {
    number: job(number, DONE if number == 2 else None, args=(b"x" * 500,))
    for number in range(1, 41)
}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.make()
    return made


def fill(home: Home) -> None:
    """A ledger of many pages: forty jobs, two measurements."""
    ledger = Ledger.open(home.ledger)
    for one in JOBS.values():
        ledger.save(one)
    for peak in (100, 200):
        outcome = Outcome("exited", 0, peak=peak * MiB, system_peak=(peak + 50) * MiB)
        ledger.measurements.remember(job(), "cpu", 512 * MiB, outcome, "warm", 1.0)
    ledger.commit()
    ledger.close()


def attempt(home: Home, record: bytes, run: str, claimed: bool = True) -> None:
    """The directory of an attempt, as a broker and a keeper leave it."""
    directory = home.runs / run
    directory.mkdir()
    (directory / "job.json").write_bytes(record)
    if claimed:
        (directory / "claim").write_text("{}")


def live(home: Home) -> dict[int, Job]:
    ledger = Ledger.open(home.ledger)
    found = {one.id: one for one in ledger.live()}
    ledger.close()
    return found


def contents(home: Home) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in home.path.iterdir() if path.is_file()}


def test_a_sound_ledger_is_not_touched(home: Home) -> None:
    fill(home)
    attempt(home, msgspec.json.encode(job(50, running(lease()))), "50.1")
    before = contents(home)
    assert recover(home) is None
    assert contents(home) == before


def test_what_can_be_read_is_saved_and_the_damaged_ledger_is_kept_as_it_was(home: Home) -> None:
    fill(home)
    ledger = Ledger.open(home.ledger)
    known = ledger.measurements.evidence(job(), "cpu")
    ledger.close()
    content = home.ledger.read_bytes()
    page = content.index(b'{"id":20,') // PAGE * PAGE
    lost = {int(number) for number in re.findall(rb'\{"id":(\d+),', content[page : page + PAGE])}
    damaged = content[:page] + bytes(PAGE) + content[page + PAGE :]
    home.ledger.write_bytes(damaged)

    done = recover(home)
    assert done is not None
    assert done.aside != home.ledger
    assert done.aside.read_bytes() == damaged
    ledger = Ledger.open(home.ledger)
    found = {number: one for number in JOBS if (one := ledger.find(number)) is not None}
    assert JOBS.keys() - found.keys() == lost
    assert found == {number: kept(JOBS[number]) for number in found}
    assert ledger.live() == [one for one in found.values() if one.id != 2]
    assert (done.jobs, done.peaks, done.running) == (len(found), 2, 0)
    assert ledger.measurements.evidence(job(), "cpu") == known
    ledger.close()
    assert recover(home) is None


def test_what_runs_comes_back_with_its_lease_even_where_nothing_can_be_read(home: Home) -> None:
    home.ledger.write_bytes(NOTES)
    starting = job(5, Starting(1.0, lease(), 0.0, 1.0), attempt=2)
    attempt(home, msgspec.json.encode(starting), "5.2")
    attempt(home, msgspec.json.encode(job(6, running(lease()))), "6.1", claimed=False)
    attempt(home, msgspec.json.encode(job(7, DONE)), "7.1")
    attempt(home, b'{"id":8,', "8.1")
    (home.runs / "9.1").mkdir()
    done = recover(home)
    assert done is not None
    assert (done.jobs, done.peaks, done.running) == (0, 0, 1)
    assert done.aside.read_bytes() == NOTES
    assert live(home) == {5: starting}


def test_what_an_attempt_says_of_itself_beats_an_older_record_in_the_ledger(home: Home) -> None:
    fill(home)
    content = home.ledger.read_bytes()
    # For SQLite nothing is wrong: one live job just cannot be read.
    home.ledger.write_bytes(content.replace(b'{"id":3,', b'{"id":x,', 1))
    starting = job(4, Starting(1.0, lease(), 0.0, 1.0))
    attempt(home, msgspec.json.encode(starting), "4.1")
    done = recover(home)
    assert done is not None
    assert (done.jobs, done.running) == (39, 1)
    assert live(home) == {n: one for n, one in JOBS.items() if n not in (2, 3)} | {4: starting}


@pytest.mark.parametrize("content", [b"", b"S"])
def test_a_ledger_that_was_cut_to_nothing_is_mended_too(home: Home, content: bytes) -> None:
    home.ledger.write_bytes(content)
    done = recover(home)
    assert done is not None
    assert done.aside.read_bytes() == content
    assert live(home) == {}


def test_no_damaged_ledger_is_written_over_by_the_next(home: Home) -> None:
    kept = []
    for content in (NOTES, NOTES[::-1], NOTES[1:]):
        home.ledger.write_bytes(content)
        done = recover(home)
        assert done is not None
        kept.append((done.aside, content))
    for path, content in kept:
        assert path.read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"S", NOTES])
def test_what_is_only_in_the_journal_is_saved_and_the_journal_is_kept_as_it_was(
    home: Home, content: bytes
) -> None:
    journal = home.ledger.with_name(f"{home.ledger.name}-wal")
    ledger = Ledger.open(home.ledger)
    for one in JOBS.values():
        ledger.save(one)
    ledger.commit()
    kept = journal.read_bytes()
    ledger.close()
    home.ledger.write_bytes(content)
    journal.write_bytes(kept)
    done = recover(home)
    assert done is not None
    assert done.aside.read_bytes() == content
    assert done.aside.with_name(f"{done.aside.name}-wal").read_bytes() == kept
    assert live(home).keys() >= JOBS.keys() - {2, 40}
