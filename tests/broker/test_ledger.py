"""The broker's memory on disk, with real files, real kills and real damage."""

import base64
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sublet.broker.ledger import VERSION, Ledger
from sublet.domain.job import Finished, Job, Outcome, Process, Starting, Waiting
from sublet.domain.memory import Share
from sublet.errors import LedgerDamaged, WorldError
from sublet.units import MiB
from support.jobs import job, jobs, kept, lease, live_states, running
from support.ledgers import reopened

V1 = Path(__file__).with_name("data") / "ledger-v1.sql"
V2 = Path(__file__).with_name("data") / "ledger-v2.sql"
TESTS = Path(__file__).parents[1]
PAGE = 4096
DONE = Finished(9.0, Outcome("exited", 0))


# What was committed is there.


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_job_comes_back_as_it_was_saved(ledger: Ledger, data: st.DataObject) -> None:
    saved = data.draw(jobs(ledger.last_id() + 1))
    ledger.save(saved)
    ledger.commit()
    assert ledger.find(saved.id) == kept(saved)
    assert (saved in ledger.live()) == (not isinstance(saved.state, Finished))


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(jobs(0, live_states), min_size=1, max_size=5))
def test_live_jobs_are_there_after_a_restart_in_the_order_they_came(
    tmp_path: Path, drawn: list[Job]
) -> None:
    path = Path(tempfile.mkdtemp(dir=tmp_path)) / "ledger.sqlite"
    ledger = Ledger.open(path)
    numbered = [_numbered(one, number) for number, one in enumerate(drawn, start=1)]
    for one in reversed(numbered):
        ledger.save(one)
    ledger.commit()
    again = reopened(ledger)
    assert again.live() == numbered
    again.close()


def test_a_finished_job_is_not_live_any_more_and_can_still_be_found(ledger: Ledger) -> None:
    for one in (job(1), job(2), job(1, DONE)):
        ledger.save(one)
    ledger.commit()
    assert ledger.live() == [job(2)]
    assert ledger.find(1) == kept(job(1, DONE))
    assert ledger.find(3) is None


def test_numbers_are_never_given_twice_not_even_those_of_finished_jobs(ledger: Ledger) -> None:
    assert ledger.last_id() == 0
    ledger.save(job(7, DONE))
    ledger.commit()
    again = reopened(ledger)
    assert again.last_id() == 7
    again.close()


def test_what_was_rolled_back_was_never_there(ledger: Ledger) -> None:
    ledger.save(job(1))
    ledger.commit()
    ledger.save(job(1, running(lease())))
    ledger.save(job(2))
    ledger.rollback()
    assert ledger.live() == [job(1)]
    ledger.rollback()
    ledger.commit()
    assert ledger.live() == [job(1)]


def test_closing_keeps_what_was_committed_and_nothing_else(ledger: Ledger) -> None:
    ledger.save(job(1))
    ledger.commit()
    ledger.save(job(2))
    again = reopened(ledger)
    assert again.live() == [job(1)]
    again.close()


def test_a_kill_between_save_and_commit_loses_the_saved_and_keeps_the_committed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.sqlite"
    _write_and_be_killed(path)
    ledger = Ledger.open(path)
    assert ledger.live() == [job(1)]
    assert ledger.find(2) is None
    assert ledger.measurements.evidence(job(1), "cpu").runs == 0
    ledger.save(job(2))
    ledger.commit()
    assert ledger.live() == [job(1), job(2)]
    ledger.close()


def test_a_kill_while_a_ledger_is_made_leaves_none_and_the_next_broker_makes_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.sqlite"
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from sublet.broker.ledger import Ledger\n"
        "def die_first(event, details):\n"
        "    if event == 'os.rename':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.addaudithook(die_first)\n"
        "Ledger.open(Path(sys.argv[1]))\n"
    )
    child = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert child.returncode == -signal.SIGKILL
    assert not path.exists()
    (partial,) = tmp_path.iterdir()
    # All that was missing was its name.
    Ledger.open(partial).close()
    ledger = Ledger.open(path)
    assert ledger.live() == []
    ledger.close()


def _numbered(one: Job, number: int) -> Job:
    return replace(one, id=number)


def _write_and_be_killed(path: Path) -> None:
    program = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from sublet.broker.ledger import Ledger\n"
        "from sublet.domain.job import Outcome\n"
        "from support.jobs import job\n"
        "ledger = Ledger.open(Path(sys.argv[1]))\n"
        "ledger.save(job(1))\n"
        "ledger.commit()\n"
        "ledger.save(job(2))\n"
        "told = Outcome('exited', 0, peak=1)\n"
        "ledger.measurements.remember(job(1), 'cpu', 1, told, 'warm', 1.0)\n"
        "print('saved', flush=True)\n"
        "signal.pause()\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "saved\n"
        child.kill()
    assert child.returncode == -signal.SIGKILL
    # Nobody has tidied up: this is what the next broker really finds.
    assert path.with_name("ledger.sqlite-wal").stat().st_size > 0


# What is damaged is left alone.


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a ledger of many pages."""
    path = tmp_path_factory.mktemp("healthy") / "ledger.sqlite"
    ledger = Ledger.open(path)
    for number in range(1, 41):
        ledger.save(job(number, args=(b"x" * 500,)))
    ledger.commit()
    ledger.close()
    return path.read_bytes()


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory, healthy: bytes) -> tuple[bytes, bytes]:
    """The same ledger with one more job, which is in the journal only: after a kill."""
    path = tmp_path_factory.mktemp("unfinished") / "ledger.sqlite"
    path.write_bytes(healthy)
    ledger = Ledger.open(path)
    ledger.save(job(41))
    ledger.commit()
    content, journal = path.read_bytes(), _journal(path).read_bytes()
    ledger.close()
    return content, journal


def _journal(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _is_refused_as_damaged(directory: Path, content: bytes, journal: bytes | None = None) -> None:
    path = Path(tempfile.mkdtemp(dir=directory)) / "ledger.sqlite"
    path.write_bytes(content)
    if journal is not None:
        _journal(path).write_bytes(journal)
    with pytest.raises(LedgerDamaged) as refusal:
        Ledger.open(path)
    assert str(path) in refusal.value.message
    assert "`sublet recover`" in refusal.value.hint
    assert path.read_bytes() == content
    if journal is not None:
        assert _journal(path).read_bytes() == journal


def test_a_ledger_with_any_page_wiped_is_refused_and_left_as_it_is(
    tmp_path: Path, healthy: bytes
) -> None:
    for start in range(0, len(healthy), PAGE):
        _is_refused_as_damaged(tmp_path, _wiped(healthy, start))


def test_the_journal_of_a_damaged_ledger_is_left_as_it_is_too(
    tmp_path: Path, unfinished: tuple[bytes, bytes]
) -> None:
    content, journal = unfinished
    # The journal makes good whatever happens to the pages that are in it.
    mended = {
        (struct.unpack_from(">I", journal, place)[0] - 1) * PAGE
        for place in range(32, len(journal), 24 + PAGE)
    }
    damaging = set(range(0, len(content), PAGE)) - mended
    assert len(damaging) > 10
    for start in damaging:
        _is_refused_as_damaged(tmp_path, _wiped(content, start), journal)
    for cut in (b"", content[:1]):
        _is_refused_as_damaged(tmp_path, cut, journal)


def test_what_is_in_the_journal_only_is_not_lost(
    tmp_path: Path, unfinished: tuple[bytes, bytes]
) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(unfinished[0])
    _journal(path).write_bytes(unfinished[1])
    ledger = Ledger.open(path)
    assert ledger.last_id() == 41
    ledger.close()


def _wiped(content: bytes, start: int) -> bytes:
    return content[:start] + bytes(PAGE) + content[start + PAGE :]


def test_a_ledger_that_was_cut_short_is_refused_and_left_as_it_is(
    tmp_path: Path, healthy: bytes
) -> None:
    for length in (0, 1, 16, 99, 100, PAGE - 1, PAGE, PAGE + 1, len(healthy) - PAGE):
        _is_refused_as_damaged(tmp_path, healthy[:length])


def test_a_file_that_was_never_a_ledger_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    _is_refused_as_damaged(tmp_path, b"These are somebody's notes.\n" * 400)
    _is_refused_as_damaged(tmp_path, bytes(range(256)) * 64)


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TABLE notes (text TEXT)",
        "CREATE TABLE notes (text TEXT); PRAGMA user_version = 1",
        "CREATE TABLE jobs (id INTEGER PRIMARY KEY); PRAGMA user_version = 1",
    ],
)
def test_a_database_without_our_tables_is_refused_and_left_as_it_is(
    tmp_path: Path, script: str
) -> None:
    other = tmp_path / "other.sqlite"
    connection = sqlite3.connect(other)
    connection.executescript(script)
    connection.close()
    _is_refused_as_damaged(tmp_path, other.read_bytes())


def test_a_live_job_that_cannot_be_read_is_damage_too(tmp_path: Path, healthy: bytes) -> None:
    # As long as before: for SQLite, nothing is wrong.
    content = healthy.replace(b'{"id":3,', b'{"id":x,', 1)
    assert content != healthy
    _is_refused_as_damaged(tmp_path, content)


def test_a_finished_job_whose_record_is_damaged_counts_as_forgotten(tmp_path: Path) -> None:
    """SQLite does not see that, and the others must not pay for it."""
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger.open(path)
    for number in (1, 2):
        ledger.save(job(number, Finished(2.0, Outcome("exited", 0))))
    ledger.commit()
    ledger.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE jobs SET record = X'7B227B' WHERE id = 1")
        connection.commit()
    opened = Ledger.open(path)
    assert [one.id for one in opened.latest(10)] == [2]
    assert opened.find(1) is None
    assert opened.with_token("token-1") is None
    opened.close()


def test_a_healthy_ledger_is_not_taken_for_a_damaged_one(tmp_path: Path, healthy: bytes) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(healthy)
    ledger = Ledger.open(path)
    assert [one.id for one in ledger.live()] == list(range(1, 41))
    ledger.close()


# What the world may do to it.


def test_the_ledger_of_a_newer_sublet_is_refused_and_left_as_it_is(
    tmp_path: Path, healthy: bytes
) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(healthy)
    with sqlite3.connect(path) as other:
        other.execute(f"PRAGMA user_version = {VERSION + 1}")
    other.close()
    content = path.read_bytes()
    with pytest.raises(WorldError, match="written by a newer Sublet") as refusal:
        Ledger.open(path)
    assert not isinstance(refusal.value, LedgerDamaged)
    assert "Upgrade" in refusal.value.hint
    assert path.read_bytes() == content


def test_a_place_where_no_file_can_be_made_is_the_worlds_fault_and_not_damage(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("not a directory")
    (tmp_path / "directory").mkdir()
    for path in (
        tmp_path / "missing" / "ledger.sqlite",
        tmp_path / "file" / "ledger.sqlite",
        tmp_path / "directory",
    ):
        _is_the_worlds_fault(path)


def test_a_directory_that_may_not_be_written_is_the_worlds_fault_and_not_damage(
    healthy: bytes,
) -> None:
    # Not in tmp_path, which nobody but its owner may enter.
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        old = directory / "old.sqlite"
        old.write_bytes(healthy)
        old.chmod(0o444)
        directory.chmod(0o555)
        with _without_root():
            _is_the_worlds_fault(directory / "new.sqlite")
            _is_the_worlds_fault(old)
        assert old.read_bytes() == healthy
        directory.chmod(0o700)


@contextmanager
def _without_root() -> Iterator[None]:
    """Permissions mean nothing to root, so a test that runs as root is nobody for a while."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def _is_the_worlds_fault(path: Path) -> None:
    with pytest.raises(WorldError, match="cannot be used") as refusal:
        Ledger.open(path)
    assert not isinstance(refusal.value, LedgerDamaged)
    assert str(path) in refusal.value.message
    assert "SUBLET_HOME" in refusal.value.hint


# Schemas of the past.


def test_a_ledger_of_schema_1_keeps_its_jobs_and_its_evidence(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    old = sqlite3.connect(path)
    old.executescript(V1.read_text())
    old.close()

    ledger = Ledger.open(path)
    two, three, four = ledger.live()
    assert ledger.last_id() == 4
    one = ledger.find(1)
    assert one is not None
    assert isinstance(one.state, Finished)
    assert one.state.outcome.cause == "lease exceeded"
    assert one.state.outcome.tenants[0].job == 2
    assert one.spec.program.args == (b"--epochs", b"3")
    assert two.state == running(lease())
    assert isinstance(three.state, Starting)
    assert three.state.lease.cpus == (0, 1)
    assert three.attempt == 2
    assert four.state == Waiting(4.0)
    assert (four.attempt, four.least) == (2, 768 * MiB)
    assert four.spec.memory == Share(0.4)
    assert four.spec.program.target == b"caf\xe9.train"
    assert four.spec.surroundings.environ == {b"NAME": b"caf\xe9"}
    assert four.spec.surroundings.limits == {7: (1024, -1)}

    known = ledger.measurements.evidence(one, "cpu")
    assert (known.peak, known.runs, known.same_arguments) == (420 * MiB, 1, True)
    assert (known.outside, known.failed_at) == (130 * MiB, 0)
    # The cold one did not use TensorFlow, so it says nothing of those that do.
    assert ledger.measurements.usual_outside("cpu", "cold") is None

    ended = two.evolve(Finished(20.0, Outcome("exited", 0), two.lease, "warm"))
    ledger.save(ended)
    ledger.commit()
    again = reopened(ledger)
    assert again.live() == [three, four]
    assert again.find(2) == kept(ended)
    again.close()


def test_a_ledger_of_schema_2_keeps_its_jobs_its_evidence_and_its_forecasts(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.sqlite"
    old = sqlite3.connect(path)
    old.executescript(V2.read_text())
    old.close()

    ledger = Ledger.open(path)
    two, three, four = ledger.live()
    one = ledger.find(1)
    assert one is not None
    assert isinstance(one.state, Finished)
    assert one.state.outcome.ran == 4.0
    assert two.state == running(lease())
    assert (three.attempt, type(three.state)) == (2, Starting)
    assert four.spec.program.args == (b"caf\xe9",)
    assert (four.attempt, four.least, four.state) == (3, 768 * MiB, Waiting(5.0))
    assert (four.past, four.failures) == ((), 0)
    assert (four.spec.priority, four.spec.requeue, four.spec.task) == ("normal", True, None)
    # Those who came from one shell share what they inherited from it.
    assert two.spec.surroundings is three.spec.surroundings is four.spec.surroundings

    history = ledger.measurements.history(one, "cpu")
    assert [run.peak for run in history.runs] == [300 * MiB]
    assert history.forecast is not None
    assert history.forecast.high == 250 * MiB
    assert ledger.with_token("token-4") == four
    assert ledger.fact("boot") is None

    ledger.save(four)
    ledger.commit()
    again = reopened(ledger)
    assert again.live() == [two, three, four]
    again.close()


# Surroundings that many have in common.


def test_jobs_from_one_shell_share_one_record_in_memory_and_on_disk(ledger: Ledger) -> None:
    for number in range(1, 6):
        ledger.save(job(number))
    ledger.commit()
    assert _count(ledger, "surroundings") == 1
    first, *others = reopened(ledger).live()
    assert all(one.spec.surroundings is first.spec.surroundings for one in others)


def test_surroundings_go_with_the_last_job_that_has_them(ledger: Ledger) -> None:
    for number, cwd in ((1, b"/a"), (2, b"/a"), (3, b"/b"), (4, b"/c")):
        ledger.save(job(number, None if number == 4 else DONE, cwd=cwd))
    assert ledger.prune(keep=2) == [1]
    assert _count(ledger, "surroundings") == 3
    assert ledger.prune(keep=0) == [3, 2]
    assert _count(ledger, "surroundings") == 1
    ledger.save(job(5, cwd=b"/b"))
    ledger.commit()
    assert [one.spec.surroundings.cwd for one in reopened(ledger).live()] == [b"/c", b"/b"]


def test_surroundings_that_were_rolled_back_are_written_with_the_next_job(ledger: Ledger) -> None:
    ledger.save(job(1))
    ledger.rollback()
    ledger.save(job(2))
    ledger.commit()
    assert reopened(ledger).live() == [job(2)]


def test_surroundings_that_a_full_disk_has_refused_are_written_with_the_next_job(
    ledger: Ledger,
) -> None:
    """SQLite may end the transaction by itself when the disk is full."""
    (pages,) = ledger._db.execute("PRAGMA page_count").fetchone()
    ledger._db.execute(f"PRAGMA max_page_count = {pages}")
    ledger.save(job(1))
    with pytest.raises(sqlite3.Error, match="full"):
        ledger.save(job(2, args=(b"x" * 500_000,)))
    ledger.rollback()
    ledger._db.execute("PRAGMA max_page_count = 100000")
    ledger.save(job(200))
    ledger.commit()
    assert reopened(ledger).live() == [job(200)]


# Environments hold keys and passwords.


def test_an_environment_is_there_as_long_as_a_live_job_needs_it(ledger: Ledger) -> None:
    for number in (1, 2):
        ledger.save(_with_secret(number))
    ledger.save(_with_secret(1, DONE))
    ledger.commit()
    again = reopened(ledger)
    assert again.live() == [_with_secret(2)]
    one = again.find(1)
    assert one is not None
    assert one.spec.surroundings.environ == {}
    assert one.spec.surroundings.forgotten == (b"API_KEY",)
    again.save(_with_secret(2, DONE))
    # Another one of the same shell, in the same moment.
    again.save(_with_secret(3))
    again.commit()
    assert reopened(again).live() == [_with_secret(3)]


def test_nothing_of_an_environment_is_left_in_the_files_when_its_jobs_have_ended(
    ledger: Ledger,
) -> None:
    for number in range(1, 4):
        ledger.save(_with_secret(number))
    ledger.commit()
    assert _lies_in_files(ledger)
    for number in range(1, 4):
        ledger.save(_with_secret(number, DONE))
        ledger.commit()
    assert ledger.in_journal
    ledger.checkpoint()
    assert not ledger.in_journal
    assert not _lies_in_files(ledger)


def test_what_a_killed_broker_had_dropped_is_gone_when_the_next_one_opens_the_ledger(
    ledger: Ledger, tmp_path: Path
) -> None:
    ledger.save(_with_secret(1))
    ledger.commit()
    ledger.save(_with_secret(1, DONE))
    ledger.commit()
    for ending in ("", "-wal"):
        shutil.copyfile(f"{ledger.path}{ending}", tmp_path / f"copy.sqlite{ending}")
    next_one = Ledger.open(tmp_path / "copy.sqlite")
    assert not _lies_in_files(next_one)
    next_one.close()


def test_environments_that_an_earlier_version_kept_are_dropped(ledger: Ledger) -> None:
    for number in (1, 2):
        ledger.save(_with_secret(number))
    ledger.save(job(3))
    ledger.save(replace(job(4, DONE), token="4"))
    ledger.commit()
    db = ledger._db
    db.execute("PRAGMA secure_delete = OFF")
    db.execute("UPDATE jobs SET live = 0, state = 'finished' WHERE id < 3")
    db.execute("DELETE FROM jobs WHERE id = 2")  # Its row stays in a free page.
    inline = msgspec.json.encode(_with_secret(4, DONE))
    db.execute("UPDATE jobs SET record = ?, surroundings = NULL WHERE id = 4", (inline,))
    db.execute("DROP INDEX peaks_on_a_device")
    db.execute("ALTER TABLE peaks DROP COLUMN device")
    db.execute("ALTER TABLE peaks DROP COLUMN outside")
    db.execute("PRAGMA user_version = 3")
    again = reopened(ledger)
    assert not _lies_in_files(again)
    assert again.live() == [job(3)]
    found = [again.find(number) for number in (1, 4)]
    assert [one and one.spec.surroundings.environ for one in found] == [{}, {}]
    again.close()


SECRET = b"correct horse battery staple" * 300
"""Longer than a page."""


def _with_secret(number: int, state: Finished | None = None) -> Job:
    one = job(number, state)
    around = replace(one.spec.surroundings, environ={b"API_KEY": SECRET})
    return replace(one, spec=replace(one.spec, surroundings=around))


def _lies_in_files(ledger: Ledger) -> bool:
    """Whether the middle of a secret is anywhere in the ledger's files."""
    files = ledger.path.parent.glob(f"{ledger.path.name}*")
    # A record has it in base64, which looks like one of three texts.
    parts = [base64.b64encode(SECRET[start:])[8:24] for start in range(3)]
    return any(part in path.read_bytes() for path in files for part in parts)


def test_a_job_whose_surroundings_are_missing_is_damage(ledger: Ledger) -> None:
    ledger.save(job(1))
    ledger.commit()
    ledger._db.execute("DELETE FROM surroundings")
    with pytest.raises(LedgerDamaged, match="surroundings of job 1"):
        reopened(ledger)


def _count(ledger: Ledger, table: str) -> int:
    (count,) = ledger._db.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(count)


# What is looked up.


def test_the_first_job_of_a_request_is_found_by_its_token_even_when_it_has_ended(
    ledger: Ledger,
) -> None:
    for number, state in ((1, DONE), (2, None), (3, None)):
        ledger.save(replace(job(number, state), token="the array"))
    ledger.commit()
    found = ledger.with_token("the array")
    assert found is not None
    assert found.id == 1
    assert ledger.with_token("another") is None


def test_the_oldest_of_the_finished_are_forgotten_and_none_that_lives(ledger: Ledger) -> None:
    for number in range(1, 9):
        ledger.save(job(number, None if number in (1, 5) else DONE))
    assert ledger.prune(keep=3) == [4, 3, 2]
    ledger.commit()
    assert [one.id for one in ledger.latest(9)] == [6, 7, 8]
    assert [one.id for one in ledger.live()] == [1, 5]
    assert ledger.last_id() == 8


def test_calls_of_a_pool_do_not_push_jobs_of_the_queue_out(ledger: Ledger) -> None:
    for number in range(1, 10):
        one = job(number, DONE)
        client = None if number in (1, 2, 3) else Process(1, 1)
        ledger.save(replace(one, spec=replace(one.spec, client=client)))
    assert ledger.prune(keep=2) == [7, 6, 5, 4, 1]
    assert ledger.numbers() == {2, 3, 8, 9}


def test_what_was_noted_is_there_for_the_next_broker(ledger: Ledger) -> None:
    ledger.note("boot", "one")
    ledger.note("boot", "two")
    ledger.commit()
    assert reopened(ledger).fact("boot") == "two"
