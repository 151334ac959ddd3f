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
from support.jobs import job
from support.queue import HOLD, ended, reached, shell, submit
from support.sandbox import Sandbox, wait_for

NewSandbox = Callable[..., Sandbox]


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
    new_sandbox: NewSandbox,
) -> None:
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="1GiB")
    holder = shell(sandbox, HOLD.format("go"))
    answer = sandbox.sublet(
        "submit", "--after", str(holder), "--array", "1-20", "--memory", "64MiB",
        "sh", "-c", "echo x >> ran-{index}",
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    reached(sandbox, holder, "running")
    older = sandbox.status()["pid"]
    os.kill(older, signal.SIGSTOP)
    (sandbox.home / "broker.lock").unlink()
    with subprocess.Popen(
        [sys.executable, "-m", "sublet.broker"],
        env=sandbox.environ,
        stderr=subprocess.PIPE,
        text=True,
    ) as newer:
        assert newer.stderr is not None
        assert "ready" in newer.stderr.readline()
        _ends_the_older(sandbox, holder, older, newer.pid)


def _ends_the_older(sandbox: Sandbox, holder: int, older: int, newer: int) -> None:
    assert sandbox.status()["pid"] == newer
    os.kill(older, signal.SIGCONT)
    sandbox.write("go", "")
    wait_for(lambda: not os.path.exists(f"/proc/{older}"), "the first one has ended")
    assert {one["exit"] for one in ended(sandbox, *range(holder + 1, holder + 21))} == {0}
    for number in range(1, 21):
        assert (sandbox.work / f"ran-{number}").read_text() == "x\n"
    assert sandbox.status()["pid"] == newer
    sandbox.sublet("down", check=True)


def test_a_broker_whose_home_is_gone_ends_and_its_programs_go_on(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="1GiB")
    number = shell(sandbox, f"{HOLD.format('go')}; touch done")
    reached(sandbox, number, "running")
    pid = sandbox.status()["pid"]
    while sandbox.home.exists():
        shutil.rmtree(sandbox.home, ignore_errors=True)  # Somebody may just write there.
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "it has ended")
    assert not (sandbox.home / "broker.sock").exists()
    sandbox.write("go", "")
    wait_for(lambda: (sandbox.work / "done").exists(), "its program has come to its end")
    wait_for(lambda: not sandbox.processes(), "nothing is left")


def test_a_socket_that_was_removed_comes_back(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="1GiB")
    pid = sandbox.status()["pid"]
    (sandbox.home / "broker.sock").unlink()
    assert sandbox.status()["pid"] == pid


# Commits that are gone.


def killed(sandbox: Sandbox) -> None:
    pid = sandbox.status()["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "the broker is gone")


def stopped_before_a_checkpoint(sandbox: Sandbox, broker: int) -> int:
    """Some jobs in the queue, the last of them in the journal only; the broker stands still."""
    holder = shell(sandbox, HOLD.format("go"))
    reached(sandbox, holder, "running")
    while True:
        number = sublet.submit(["true"], memory="64MiB", after=[holder]).id
        os.kill(broker, signal.SIGSTOP)
        if journaled(sandbox):
            return number
        os.kill(broker, signal.SIGCONT)


def journaled(sandbox: Sandbox) -> bool:
    """Whether something is in the journal that is not in the file."""
    copy = sandbox.work / "copy.sqlite"
    shutil.copyfile(sandbox.home / "ledger.sqlite", copy)
    with sqlite3.connect(copy) as file:
        row = file.execute("SELECT value FROM facts WHERE name = 'commits'").fetchone()
    file.close()
    # No row: no checkpoint has brought a commit into the file yet.
    return row is None or int(row[0]) < Counter.read(sandbox.home / "ledger.sqlite")


@pytest.mark.parametrize("harm", ["deleted", "flipped", "cut"])
def test_jobs_that_were_lost_with_the_journal_are_missed(
    new_sandbox: NewSandbox, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="1GiB")
    monkeypatch.setenv("SUBLET_HOME", str(sandbox.home))
    monkeypatch.chdir(sandbox.work)
    pid = sandbox.status()["pid"]
    last = stopped_before_a_checkpoint(sandbox, pid)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "the broker is gone")
    ledger, wal = sandbox.home / "ledger.sqlite", sandbox.home / "ledger.sqlite-wal"
    content = bytearray(wal.read_bytes())
    if harm == "deleted":
        wal.unlink()
    elif harm == "flipped":
        content[60] ^= 1
        wal.write_bytes(content)
    else:
        wal.write_bytes(content[:100])
    before = ledger.read_bytes()
    refused = sandbox.sublet("status")
    assert refused.returncode == 2
    assert "commits are missing" in refused.stderr
    assert "sublet recover" in refused.stderr
    assert ledger.read_bytes() == before
    assert sandbox.sublet("status").returncode == 2
    answer = sandbox.sublet("recover", check=True)
    assert "missing: " in answer.stdout
    reached(sandbox, 1, "running")
    sandbox.write("go", "")
    assert ended(sandbox, 1)[0]["exit"] == 0
    assert submit(sandbox, "true") <= last + 1
    killed(sandbox)
    assert "1 programs" in answer.stdout
    assert sandbox.sublet("status").returncode == 0


def test_a_ledger_that_is_gone_is_not_taken_for_a_new_home(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="1GiB")
    assert ended(sandbox, shell(sandbox, "true"))[0]["exit"] == 0
    sandbox.sublet("down", check=True)
    (sandbox.home / "ledger.sqlite").unlink()
    refused = sandbox.sublet("status")
    assert refused.returncode == 2
    assert "the file is gone" in refused.stderr
    sandbox.sublet("recover", check=True)
    assert sandbox.status()["leases"] == []
