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
from support.queue import HOLD, ended, reached, row, rows, said, shell, stands, submit
from support.sandbox import PATIENCE, Sandbox, wait_for

NewSandbox = Callable[..., Sandbox]


def brokers(sandbox: Sandbox) -> list[int]:
    return [pid for pid, words in sandbox.processes().items() if "sublet.broker" in words]


def kill_broker(sandbox: Sandbox) -> None:
    """The one that runs now; clients may start the next one at once."""
    killed = brokers(sandbox)
    process_tree.send(killed, signal.SIGKILL)
    wait_for(lambda: not {*killed} & {*brokers(sandbox)}, "the broker is dead")


def count(sandbox: Sandbox, name: str) -> int:
    path = sandbox.work / name
    return len(path.read_text().split()) if path.exists() else 0


def test_a_broker_that_is_killed_again_and_again_loses_no_job_and_runs_none_twice(
    new_sandbox: NewSandbox,
) -> None:
    """While clients submit and jobs run: every number that was printed ends once."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="4GiB")
    dice = random.Random(3)
    clients: list[subprocess.Popen[str]] = []
    for number in range(12):
        script = f"echo x >> began-{number}; sleep 0.2; echo x >> ended-{number}"
        clients.append(sandbox.start("submit", "--json", "--memory", "64MiB", "sh", "-c", script))
        if number % 3 == 2:
            clients.append(sandbox.start("ps"))
            sandbox.status()  # So that there is a broker to kill.
            time.sleep(dice.uniform(0.0, 0.2))  # Any moment will do, and none is waited for.
            kill_broker(sandbox)
    outputs = [client.communicate(timeout=90) for client in clients]
    assert [client.returncode for client in clients] == [0] * len(clients), outputs
    numbers = [json.loads(out)["id"] for out, _ in outputs if out.startswith("{")]
    assert len(set(numbers)) == 12
    kill_broker(sandbox)
    assert [one["exit"] for one in ended(sandbox, *numbers)] == [0] * 12
    assert [count(sandbox, f"began-{number}") for number in range(12)] == [1] * 12
    assert [count(sandbox, f"ended-{number}") for number in range(12)] == [1] * 12
    assert len(_all(sandbox)) == 12


def _all(sandbox: Sandbox) -> list[dict[str, Any]]:
    answer = sandbox.sublet("ps", "--all", "--json", check=True)
    return json.loads(answer.stdout)["jobs"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("indexes", [(), (0, 1, 2)], ids=["one", "array"])
def test_a_submission_whose_answer_was_lost_is_not_done_twice(
    new_sandbox: NewSandbox, monkeypatch: pytest.MonkeyPatch, indexes: tuple[int, ...]
) -> None:
    """The same request again, to the next broker, when some of it has run already."""
    sandbox = new_sandbox()
    monkeypatch.setenv("SUBLET_HOME", str(sandbox.home))
    monkeypatch.chdir(sandbox.work)
    sandbox.sublet("status", check=True)
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
    wait_for(lambda: count(sandbox, "ran") >= 1, "the first has run")
    connection.close()  # Without having read the answer.
    expected = max(1, len(indexes))
    kill_broker(sandbox)
    for _ in range(2):
        assert ask(request, Queued).jobs == tuple(range(1, expected + 1))
    jobs.wait(range(1, expected + 1))
    assert count(sandbox, "ran") == expected
    assert len(_all(sandbox)) == expected


def test_who_waits_for_a_job_waits_through_the_death_of_brokers(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox()
    number = shell(sandbox, f"{HOLD.format('go')}; exit 6")
    waiter = sandbox.start("wait", str(number))
    reader = sandbox.start("logs", "-f", str(number))
    for _ in range(2):
        kill_broker(sandbox)
        reached(sandbox, number, "running")
    sandbox.write("go", "")
    waiter.communicate(timeout=PATIENCE)
    reader.communicate(timeout=PATIENCE)
    assert (waiter.returncode, reader.returncode) == (6, 0)


def test_a_reboot_requeues_what_ran_and_keeps_what_waited_or_was_paused(
    new_sandbox: NewSandbox,
) -> None:
    sandbox = new_sandbox()
    hold = f"echo x >> ran; {HOLD.format('go')}"
    ran = shell(sandbox, hold)
    once = shell(sandbox, HOLD.format("go"), "--no-requeue")
    paused = shell(sandbox, hold)
    waited = shell(sandbox, "exit 0", "--after", str(ran))
    for number in (ran, once, paused):
        reached(sandbox, number, "running")
    wait_for(lambda: count(sandbox, "ran") == 2, "both have begun")
    sandbox.sublet("pause", str(paused), check=True)
    kill_broker(sandbox)  # First, so that it sees nobody else die.
    process_tree.send(list(sandbox.processes()), signal.SIGKILL)
    wait_for(lambda: not sandbox.processes(), "nothing lives")
    ledger = sqlite3.connect(sandbox.home / "ledger.sqlite")
    ledger.execute("UPDATE facts SET value = 'another boot' WHERE name = 'boot'")
    ledger.commit()
    ledger.close()
    again = reached(sandbox, ran, "running")
    assert again["attempt"] == 2
    wait_for(lambda: count(sandbox, "ran") == 3, "it has begun again")
    lost = row(sandbox, once)
    assert (lost["cause"], lost["attempt"]) == ("lost", 1)
    assert "the machine was restarted" in lost["reason"]
    assert row(sandbox, paused)["state"] == "paused"
    assert row(sandbox, waited)["reason"] == f"after #{ran}"
    sandbox.sublet("resume", str(paused), check=True)
    sandbox.write("go", "")
    assert [one["exit"] for one in ended(sandbox, ran, paused, waited)] == [0, 0, 0]
    assert count(sandbox, "ran") == 4


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
    new_sandbox: NewSandbox, option: list[str]
) -> None:
    """It is the program's keeper that starts it, which may have a nursery's environment."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="2GiB")
    sandbox.write("successor.py", SUCCESSOR)
    submit(sandbox, *option, "successor.py")
    wait_for((sandbox.work / "found").exists, "it has found another broker")
    (device,) = json.loads((sandbox.work / "found").read_text())["devices"]
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
    new_sandbox: NewSandbox,
) -> None:
    """And so do the programs that this broker has started."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="2GiB")
    sandbox.write("orphan.py", ORPHAN)
    first = submit(sandbox, "orphan.py")
    worker = reached(sandbox, first, "running")["pid"]
    broker = brokers(sandbox)
    keeper = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    process_tree.send([keeper, *broker], signal.SIGKILL)
    wait_for(lambda: not {keeper, *broker} & {*sandbox.processes()}, "both are dead")
    sandbox.write("go", "")
    wait_for((sandbox.work / "found").exists, "it has started another")
    second = shell(sandbox, f"{HOLD.format('done')}; exit 6")
    reached(sandbox, second, "running")
    now = brokers(sandbox)
    sandbox.write("end", "")
    ended(sandbox, first)
    assert brokers(sandbox) == now
    sandbox.write("done", "")
    assert ended(sandbox, second)[0]["exit"] == 6


def test_a_paused_job_is_still_paused_for_the_next_broker(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox()
    running = shell(sandbox, f"{HOLD.format('go')}; exit 4")
    waiting = shell(sandbox, "exit 5", "--after", str(running))
    reached(sandbox, running, "running")
    sandbox.sublet("pause", str(running), str(waiting), check=True)
    before = row(sandbox, running)
    wait_for(lambda: stands(sandbox, before), "it stands")
    kill_broker(sandbox)
    after = row(sandbox, running)
    assert (after["state"], after["pid"], after["attempt"]) == ("paused", before["pid"], 1)
    assert stands(sandbox, after)
    assert row(sandbox, waiting)["state"] == "paused"
    sandbox.write("go", "")
    sandbox.sublet("resume", str(running), check=True)
    assert ended(sandbox, running)[0]["exit"] == 4
    sandbox.sublet("resume", str(waiting), check=True)
    assert ended(sandbox, waiting)[0]["exit"] == 5


def test_a_job_that_is_paused_as_soon_as_it_was_submitted_stays_so_whoever_dies(
    new_sandbox: NewSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of them are just being started, with no line of the program run."""
    sandbox = new_sandbox()
    monkeypatch.setenv("SUBLET_HOME", str(sandbox.home))
    monkeypatch.chdir(sandbox.work)
    for number in range(1, 6):
        made = sublet.submit(["sh", "-c", f"echo x >> ran; {HOLD.format('go')}"], memory="64MiB")
        made.pause()
        kill_broker(sandbox)
        now = row(sandbox, number)
        assert now["state"] == "paused"
        if now["pid"] is not None:
            wait_for(partial(_stands_now, sandbox, number), "it stands")
        made.resume()
    sandbox.write("go", "")
    assert {one["exit"] for one in ended(sandbox, *range(1, 6))} == {0}
    assert count(sandbox, "ran") == 5


def _stands_now(sandbox: Sandbox, number: int) -> bool:
    return stands(sandbox, row(sandbox, number))


def test_a_pause_that_was_never_written_down_does_not_outlive_its_broker(
    new_sandbox: NewSandbox,
) -> None:
    """The keeper has heard of it; the ledger has not, and nobody was told that it is paused."""
    sandbox = new_sandbox()
    number = shell(sandbox, f"{HOLD.format('go')}; exit 4")
    before = reached(sandbox, number, "running")
    (broker,) = brokers(sandbox)
    _limit_files(broker, 0)
    asking = sandbox.start("pause", str(number))
    wait_for(lambda: stands(sandbox, before), "it stands")
    asking.kill()
    asking.communicate()
    kill_broker(sandbox)
    assert row(sandbox, number)["state"] == "running"
    sandbox.write("go", "")
    assert ended(sandbox, number)[0]["exit"] == 4


def test_a_full_disk_refuses_submissions_lets_jobs_live_and_loses_nothing(
    new_sandbox: NewSandbox,
) -> None:
    sandbox = new_sandbox()
    running = shell(sandbox, f"{HOLD.format('go')}; exit 4")
    waiting = shell(sandbox, "exit 5", "--after", str(running))
    reached(sandbox, running, "running")
    (broker,) = brokers(sandbox)
    _limit_files(broker, 0)
    for words in (["true"], ["--array", "0-9", "true"]):
        refused = sandbox.sublet("submit", "--memory", "64MiB", *words)
        assert refused.returncode == 2
        assert "The ledger cannot be written" in refused.stderr
        assert "Free some space" in refused.stderr
        assert refused.stdout == ""
    assert [one["state"] for one in rows(sandbox, running, waiting)] == ["running", "waiting"]
    sandbox.write("go", "")
    wait_for(lambda: "exit" in row(sandbox, running)["reason"], "its end is known")
    assert brokers(sandbox) == [broker]
    _limit_files(broker, None)
    assert [one["exit"] for one in ended(sandbox, running, waiting)] == [4, 5]
    later = shell(sandbox, "echo later")
    assert ended(sandbox, later)[0]["exit"] == 0
    assert said(sandbox, later) == "later\n"
    kill_broker(sandbox)
    assert [one["id"] for one in _all(sandbox)] == [running, waiting, later]


def _limit_files(pid: int, size: int | None) -> None:
    """Let a process write files up to this size only, as a full disk would."""
    most = resource.RLIM_INFINITY
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most if size is None else size, most))


def test_a_submission_from_python_survives_a_broker_that_dies_over_it(
    new_sandbox: NewSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is killed before each submission."""
    sandbox = new_sandbox()
    monkeypatch.setenv("SUBLET_HOME", str(sandbox.home))
    monkeypatch.chdir(sandbox.work)
    made = []
    for _ in range(3):
        process_tree.send(brokers(sandbox), signal.SIGKILL)
        made.append(sublet.submit(["sh", "-c", "echo x >> ran"], memory="64MiB"))
    assert [job.wait().code for job in made] == [0, 0, 0]
    assert count(sandbox, "ran") == 3
    assert not list(Path(sandbox.home / "runs").glob("*.2"))
