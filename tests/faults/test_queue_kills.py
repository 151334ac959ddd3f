"""Jobs that last: whatever dies, none is lost and none runs twice."""

import json
import random
import resource
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import sublet
from sublet.client import jobs
from sublet.client.connection import ask, connect
from sublet.client.job_request import job_without_client
from sublet.home import Home
from sublet.keeper import process_tree
from sublet.wire import PROTOCOL
from sublet.wire.messages import Queued
from sublet.wire.pack import pack
from support.box import Box, wait_for
from support.queue import HOLD, ended, reached, row, rows, said, shell, stands, submit

NewBox = Callable[..., Box]


def brokers(box: Box) -> list[int]:
    return [pid for pid, words in box.processes().items() if "sublet.broker" in words]


def kill_broker(box: Box) -> None:
    """The one that runs now; clients may start the next one at once."""
    killed = brokers(box)
    process_tree.send(killed, signal.SIGKILL)
    wait_for(lambda: not {*killed} & {*brokers(box)}, "the broker is dead")


def count(box: Box, name: str) -> int:
    path = box.work / name
    return len(path.read_text().split()) if path.exists() else 0


def test_a_broker_that_is_killed_again_and_again_loses_no_job_and_runs_none_twice(
    new_box: NewBox,
) -> None:
    """While clients submit and jobs run: every number that was printed ends once."""
    box = new_box(SUBLET_CPU_MEMORY="4GiB")
    dice = random.Random(3)
    clients: list[subprocess.Popen[str]] = []
    for number in range(12):
        script = f"echo x >> began-{number}; sleep 0.2; echo x >> ended-{number}"
        clients.append(box.start("submit", "--json", "-m", "64MiB", "sh", "-c", script))
        if number % 3 == 2:
            clients.append(box.start("ps"))
            box.status()  # So that there is a broker to kill.
            time.sleep(dice.uniform(0.0, 0.2))  # Any moment will do, and none is waited for.
            kill_broker(box)
    outputs = [client.communicate(timeout=90) for client in clients]
    assert [client.returncode for client in clients] == [0] * len(clients), outputs
    numbers = [json.loads(out)["id"] for out, _ in outputs if out.startswith("{")]
    assert len(set(numbers)) == 12
    kill_broker(box)
    assert [one["code"] for one in ended(box, *numbers)] == [0] * 12
    assert [count(box, f"began-{number}") for number in range(12)] == [1] * 12
    assert [count(box, f"ended-{number}") for number in range(12)] == [1] * 12
    assert len(_all(box)) == 12


def _all(box: Box) -> list[dict[str, Any]]:
    answer = box.sublet("ps", "--all", "--json", check=True)
    return json.loads(answer.stdout)["rows"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("indexes", [(), (0, 1, 2)], ids=["one", "array"])
def test_a_submission_whose_answer_was_lost_is_not_done_twice(
    new_box: NewBox, monkeypatch: pytest.MonkeyPatch, indexes: tuple[int, ...]
) -> None:
    """The same request again, to the next broker, when some of it has run already."""
    box = new_box()
    monkeypatch.setenv("SUBLET_HOME", str(box.home))
    monkeypatch.chdir(box.work)
    box.sublet("status", check=True)
    request = pack(
        {
            "type": "submit",
            "spec": job_without_client(["sh", "-c", "echo x >> ran"], "64MiB"),
            "token": "the same",
            "indexes": indexes,
            "at_once": 1,
            "protocol": PROTOCOL,
        }
    )
    connection = connect(Home.find())
    assert connection is not None
    connection.send(request)
    wait_for(lambda: count(box, "ran") >= 1, "the first has run")
    connection.close()  # Without having read the answer.
    expected = max(1, len(indexes))
    kill_broker(box)
    for _ in range(2):
        assert ask(request, Queued).jobs == tuple(range(1, expected + 1))
    jobs.wait(range(1, expected + 1))
    assert count(box, "ran") == expected
    assert len(_all(box)) == expected


def test_who_waits_for_a_job_waits_through_the_death_of_brokers(new_box: NewBox) -> None:
    box = new_box()
    number = shell(box, f"{HOLD.format('go')}; exit 6")
    waiter = box.start("wait", str(number))
    reader = box.start("logs", "-f", str(number))
    for _ in range(2):
        kill_broker(box)
        reached(box, number, "running")
    box.write("go", "")
    waiter.communicate(timeout=60)
    reader.communicate(timeout=60)
    assert (waiter.returncode, reader.returncode) == (6, 0)


def test_a_reboot_requeues_what_ran_and_keeps_what_waited_or_was_paused(
    new_box: NewBox,
) -> None:
    box = new_box()
    hold = f"echo x >> ran; {HOLD.format('go')}"
    ran = shell(box, hold)
    once = shell(box, HOLD.format("go"), "--no-requeue")
    paused = shell(box, hold)
    waited = shell(box, "exit 0", "--after", str(ran))
    for number in (ran, once, paused):
        reached(box, number, "running")
    wait_for(lambda: count(box, "ran") == 2, "both have begun")
    box.sublet("pause", str(paused), check=True)
    kill_broker(box)  # First, so that it sees nobody else die.
    process_tree.send(list(box.processes()), signal.SIGKILL)
    wait_for(lambda: not box.processes(), "nothing lives")
    ledger = sqlite3.connect(box.home / "ledger.sqlite")
    ledger.execute("UPDATE facts SET value = 'another boot' WHERE name = 'boot'")
    ledger.commit()
    ledger.close()
    again = reached(box, ran, "running")
    assert again["attempt"] == 2
    wait_for(lambda: count(box, "ran") == 3, "it has begun again")
    lost = row(box, once)
    assert (lost["cause"], lost["attempt"]) == ("lost", 1)
    assert "the machine was restarted" in lost["reason"]
    assert row(box, paused)["state"] == "paused"
    assert row(box, waited)["reason"] == f"after #{ran}"
    box.sublet("resume", str(paused), check=True)
    box.write("go", "")
    assert [one["code"] for one in ended(box, ran, paused, waited)] == [0, 0, 0]
    assert count(box, "ran") == 4


SUCCESSOR = """
import json, os, signal, subprocess, sys
def status():
    words = [sys.executable, "-m", "sublet", "status", "--json"]
    return json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
before = status()["pid"]
os.kill(before, signal.SIGKILL)
while os.path.exists(f"/proc/{before}/exe"): pass
with open("part", "w") as file: json.dump(status(), file)
os.rename("part", "found")
"""


@pytest.mark.parametrize("option", [[], ["--cold"]], ids=["warm", "cold"])
def test_a_broker_that_a_program_had_to_start_has_the_settings_of_the_one_before(
    new_box: NewBox, option: list[str]
) -> None:
    """It is the program's keeper that starts it, which may have a nursery's environment."""
    box = new_box(SUBLET_CPU_MEMORY="2GiB")
    box.write("successor.py", SUCCESSOR)
    submit(box, *option, "successor.py")
    wait_for((box.work / "found").exists, "it has found another broker")
    (device,) = json.loads((box.work / "found").read_text())["devices"]
    assert device["device"]["capacity"] == 2 << 30


ORPHAN = """
import os, signal, subprocess, sys, time
while not os.path.exists("go"): time.sleep(0.02)
words = [sys.executable, "-m", "sublet", "status", "--json"]
with open("part", "w") as file: subprocess.run(words, stdout=file, check=True)
os.rename("part", "found")
while not os.path.exists("end"): time.sleep(0.02)
"""


def test_a_broker_that_a_program_without_a_keeper_had_to_start_outlives_it(
    new_box: NewBox,
) -> None:
    """And so do the programs that this broker has started."""
    box = new_box(SUBLET_CPU_MEMORY="2GiB")
    box.write("orphan.py", ORPHAN)
    first = submit(box, "orphan.py")
    worker = reached(box, first, "running")["pid"]
    broker = brokers(box)
    keeper = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    process_tree.send([keeper, *broker], signal.SIGKILL)
    wait_for(lambda: not {keeper, *broker} & {*box.processes()}, "both are dead")
    box.write("go", "")
    wait_for((box.work / "found").exists, "it has started another")
    second = shell(box, f"{HOLD.format('done')}; exit 6")
    reached(box, second, "running")
    now = brokers(box)
    box.write("end", "")
    ended(box, first)
    assert brokers(box) == now
    box.write("done", "")
    assert ended(box, second)[0]["code"] == 6


def test_a_paused_job_is_still_paused_for_the_next_broker(new_box: NewBox) -> None:
    box = new_box()
    running = shell(box, f"{HOLD.format('go')}; exit 4")
    waiting = shell(box, "exit 5", "--after", str(running))
    reached(box, running, "running")
    box.sublet("pause", str(running), str(waiting), check=True)
    before = row(box, running)
    wait_for(lambda: stands(box, before), "it stands")
    kill_broker(box)
    after = row(box, running)
    assert (after["state"], after["pid"], after["attempt"]) == ("paused", before["pid"], 1)
    assert stands(box, after)
    assert row(box, waiting)["state"] == "paused"
    box.write("go", "")
    box.sublet("resume", str(running), check=True)
    assert ended(box, running)[0]["code"] == 4
    box.sublet("resume", str(waiting), check=True)
    assert ended(box, waiting)[0]["code"] == 5


def test_a_job_that_is_paused_as_soon_as_it_was_submitted_stays_so_whoever_dies(
    new_box: NewBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of them are just being started, with no line of the program run."""
    box = new_box()
    monkeypatch.setenv("SUBLET_HOME", str(box.home))
    monkeypatch.chdir(box.work)
    for number in range(1, 6):
        made = sublet.submit(["sh", "-c", f"echo x >> ran; {HOLD.format('go')}"], memory="64MiB")
        made.pause()
        kill_broker(box)
        now = row(box, number)
        assert now["state"] == "paused"
        if now["pid"] is not None:
            wait_for(partial(_stands_now, box, number), "it stands")
        made.resume()
    box.write("go", "")
    assert {one["code"] for one in ended(box, *range(1, 6))} == {0}
    assert count(box, "ran") == 5


def _stands_now(box: Box, number: int) -> bool:
    return stands(box, row(box, number))


def test_a_pause_that_was_never_written_down_does_not_outlive_its_broker(
    new_box: NewBox,
) -> None:
    """The keeper has heard of it; the ledger has not, and nobody was told that it is paused."""
    box = new_box()
    number = shell(box, f"{HOLD.format('go')}; exit 4")
    before = reached(box, number, "running")
    (broker,) = brokers(box)
    _limit_files(broker, 0)
    asking = box.start("pause", str(number))
    wait_for(lambda: stands(box, before), "it stands")
    asking.kill()
    asking.communicate()
    kill_broker(box)
    assert row(box, number)["state"] == "running"
    box.write("go", "")
    assert ended(box, number)[0]["code"] == 4


def test_a_full_disk_refuses_submissions_lets_jobs_live_and_loses_nothing(
    new_box: NewBox,
) -> None:
    box = new_box()
    running = shell(box, f"{HOLD.format('go')}; exit 4")
    waiting = shell(box, "exit 5", "--after", str(running))
    reached(box, running, "running")
    (broker,) = brokers(box)
    _limit_files(broker, 0)
    for words in (["true"], ["--array", "0-9", "true"]):
        refused = box.sublet("submit", "-m", "64MiB", *words)
        assert refused.returncode == 2
        assert "The ledger cannot be written" in refused.stderr
        assert "Free some space" in refused.stderr
        assert refused.stdout == ""
    assert [one["state"] for one in rows(box, running, waiting)] == ["running", "waiting"]
    box.write("go", "")
    wait_for(lambda: "exit" in row(box, running)["reason"], "its end is known")
    assert brokers(box) == [broker]
    _limit_files(broker, None)
    assert [one["code"] for one in ended(box, running, waiting)] == [4, 5]
    later = shell(box, "echo later")
    assert ended(box, later)[0]["code"] == 0
    assert said(box, later) == "later\n"
    kill_broker(box)
    assert [one["id"] for one in _all(box)] == [running, waiting, later]


def _limit_files(pid: int, size: int | None) -> None:
    """Let a process write files up to this size only, as a full disk would."""
    most = resource.RLIM_INFINITY
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most if size is None else size, most))


def test_a_submission_from_python_survives_a_broker_that_dies_over_it(
    new_box: NewBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before each of them."""
    box = new_box()
    monkeypatch.setenv("SUBLET_HOME", str(box.home))
    monkeypatch.chdir(box.work)
    made = []
    for _ in range(3):
        process_tree.send(brokers(box), signal.SIGKILL)
        made.append(sublet.submit(["sh", "-c", "echo x >> ran"], memory="64MiB"))
    assert [job.wait().code for job in made] == [0, 0, 0]
    assert count(box, "ran") == 3
    assert not list(Path(box.home / "runs").glob("*.2"))
