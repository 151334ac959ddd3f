"""A home that is taken over, or goes away, under a broker: one decides, and the other ends."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sublet
from sublet.broker.connections import Listener
from sublet.broker.ledger import Counter, Ledger
from sublet.errors import Superseded
from sublet.reactor import Reactor
from support.box import Box, wait_for
from support.jobs import job
from support.queue import HOLD, ended, reached, shell, submit

NewBox = Callable[..., Box]


def test_a_commit_of_an_earlier_broker_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    older, newer = Ledger.open(path), Ledger.open(path)
    older.claim()
    older.save(job(1))
    older.commit()
    newer.claim()
    older.save(job(2))
    with pytest.raises(Superseded):
        older.commit()
    newer.save(job(3))
    newer.commit()
    assert [one.id for one in newer.live()] == [1, 3]
    older.close()
    newer.close()


@pytest.mark.parametrize("remains", [False, True])
def test_nothing_is_committed_to_a_ledger_that_has_lost_its_name(
    tmp_path: Path, remains: bool
) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger.open(path)
    ledger.claim()
    for one in tmp_path.iterdir():
        one.unlink()
    if remains:
        Ledger.open(path).close()
    ledger.save(job(1))
    with pytest.raises(Superseded):
        ledger.commit()
    ledger.close()


def test_the_socket_of_another_broker_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "broker.sock")
    reactor = Reactor()
    older = Listener(reactor, path, None)  # type: ignore[arg-type]
    newer = Listener(reactor, path, None)  # type: ignore[arg-type]
    older.close()
    assert os.path.exists(path)
    os.unlink(path)
    newer.check()
    assert os.path.exists(path)
    newer.close()
    assert not os.path.exists(path)
    reactor.close()


def test_after_the_lock_was_removed_one_broker_grants_and_each_element_runs_once(
    new_box: NewBox,
) -> None:
    box = new_box(SUBLET_CPU_MEMORY="1GiB")
    holder = shell(box, HOLD.format("go"))
    answer = box.sublet(
        "submit", "--after", str(holder), "--array", "1-20", "--memory", "64MiB",
        "sh", "-c", "echo x >> ran-{index}",
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    reached(box, holder, "running")
    older = box.status()["pid"]
    os.kill(older, signal.SIGSTOP)
    (box.home / "broker.lock").unlink()
    with subprocess.Popen(
        [sys.executable, "-m", "sublet.broker"], env=box.environ, stderr=subprocess.PIPE, text=True
    ) as newer:
        assert newer.stderr is not None
        assert "ready" in newer.stderr.readline()
        _ends_the_older(box, holder, older, newer.pid)


def _ends_the_older(box: Box, holder: int, older: int, newer: int) -> None:
    assert box.status()["pid"] == newer
    os.kill(older, signal.SIGCONT)
    box.write("go", "")
    wait_for(lambda: not os.path.exists(f"/proc/{older}"), "the first one has ended")
    assert {one["code"] for one in ended(box, *range(holder + 1, holder + 21))} == {0}
    for number in range(1, 21):
        assert (box.work / f"ran-{number}").read_text() == "x\n"
    assert box.status()["pid"] == newer
    box.sublet("down", check=True)


def test_a_broker_whose_home_is_gone_ends_and_its_programs_go_on(new_box: NewBox) -> None:
    box = new_box(SUBLET_CPU_MEMORY="1GiB")
    number = shell(box, f"{HOLD.format('go')}; touch done")
    reached(box, number, "running")
    pid = box.status()["pid"]
    while box.home.exists():
        shutil.rmtree(box.home, ignore_errors=True)  # Somebody may just write there.
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "it has ended")
    assert not (box.home / "broker.sock").exists()
    box.write("go", "")
    wait_for(lambda: (box.work / "done").exists(), "its program has come to its end")
    wait_for(lambda: not box.processes(), "nothing is left")


def test_a_socket_that_was_removed_comes_back(new_box: NewBox) -> None:
    box = new_box(SUBLET_CPU_MEMORY="1GiB")
    pid = box.status()["pid"]
    (box.home / "broker.sock").unlink()
    assert box.status()["pid"] == pid


# Commits that are gone.


def killed(box: Box) -> None:
    pid = box.status()["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "the broker is gone")


def stopped_before_a_checkpoint(box: Box, broker: int) -> int:
    """Some jobs in the queue, the last of them in the journal only; the broker stands still."""
    holder = shell(box, HOLD.format("go"))
    reached(box, holder, "running")
    while True:
        number = sublet.submit(["true"], memory="64MiB", after=[holder]).id
        os.kill(broker, signal.SIGSTOP)
        if journaled(box):
            return number
        os.kill(broker, signal.SIGCONT)


def journaled(box: Box) -> bool:
    """Whether something is in the journal that is not in the file."""
    copy = box.work / "copy.sqlite"
    shutil.copyfile(box.home / "ledger.sqlite", copy)
    with sqlite3.connect(copy) as file:
        row = file.execute("SELECT value FROM facts WHERE name = 'commits'").fetchone()
    file.close()
    # No row: no checkpoint has brought a commit into the file yet.
    return row is None or int(row[0]) < Counter.read(box.home / "ledger.sqlite")


@pytest.mark.parametrize("harm", ["deleted", "flipped", "cut"])
def test_jobs_that_were_lost_with_the_journal_are_missed(
    new_box: NewBox, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    box = new_box(SUBLET_CPU_MEMORY="1GiB")
    monkeypatch.setenv("SUBLET_HOME", str(box.home))
    monkeypatch.chdir(box.work)
    pid = box.status()["pid"]
    last = stopped_before_a_checkpoint(box, pid)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "the broker is gone")
    ledger, wal = box.home / "ledger.sqlite", box.home / "ledger.sqlite-wal"
    content = bytearray(wal.read_bytes())
    if harm == "deleted":
        wal.unlink()
    elif harm == "flipped":
        content[60] ^= 1
        wal.write_bytes(content)
    else:
        wal.write_bytes(content[:100])
    before = ledger.read_bytes()
    refused = box.sublet("status")
    assert refused.returncode == 2
    assert "commits are missing" in refused.stderr
    assert "sublet recover" in refused.stderr
    assert ledger.read_bytes() == before
    assert box.sublet("status").returncode == 2
    answer = box.sublet("recover", check=True)
    assert "missing: " in answer.stdout
    reached(box, 1, "running")
    box.write("go", "")
    assert ended(box, 1)[0]["code"] == 0
    assert submit(box, "true") <= last + 1
    killed(box)
    assert "1 programs" in answer.stdout
    assert box.sublet("status").returncode == 0


def test_a_ledger_that_is_gone_is_not_taken_for_a_new_home(new_box: NewBox) -> None:
    box = new_box(SUBLET_CPU_MEMORY="1GiB")
    assert ended(box, shell(box, "true"))[0]["code"] == 0
    box.sublet("down", check=True)
    (box.home / "ledger.sqlite").unlink()
    refused = box.sublet("status")
    assert refused.returncode == 2
    assert "the file is gone" in refused.stderr
    box.sublet("recover", check=True)
    assert box.status()["leases"] == []
