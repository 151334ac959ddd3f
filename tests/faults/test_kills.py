"""Kill any process at any moment: no accepted run is lost, none runs twice, nothing stays."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.sandbox import PATIENCE, Sandbox, wait_for

NewSandbox = Callable[..., Sandbox]

WAIT = """
import os, sys, time
open('began', 'a').write('x')
while not os.path.exists('go'): time.sleep(0.02)
sys.exit(7)
"""


def _running(sandbox: Sandbox) -> dict[str, Any]:
    rows = wait_for(
        lambda: [row for row in sandbox.status()["leases"] if row["state"] == "running"],
        "the program runs",
    )
    return rows[0]  # type: ignore[no-any-return]


def _keeper_of(worker: int) -> int:
    return int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])


def _go(sandbox: Sandbox, client: "subprocess.Popen[str]") -> tuple[int, str]:
    """Let the program end; the command's code and what it said."""
    wait_for((sandbox.work / "began").exists, "the program has begun")
    sandbox.write("go", "")
    _, said = client.communicate(timeout=PATIENCE)
    return client.returncode, said


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{pid}/exe").exists() or _zombie(pid), "it is dead")


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize("option", [[], ["--cold"]], ids=["warm", "cold"])
def test_a_program_outlives_its_broker(new_sandbox: NewSandbox, option: list[str]) -> None:
    """The next broker finds it again, and its exit code still reaches the terminal."""
    sandbox = new_sandbox()
    sandbox.write("wait.py", WAIT)
    client = sandbox.start("run", *option, "--memory", "64MiB", "wait.py")
    before = _running(sandbox)
    _kill(sandbox.status()["pid"])
    after = _running(sandbox)
    assert (after["job"], after["pid"], after["attempt"]) == (before["job"], before["pid"], 1)
    assert after["lease"] == before["lease"]
    code, said = _go(sandbox, client)
    assert code == 7
    assert "lease 64.0 MiB" in said
    assert (sandbox.work / "began").read_text() == "x"


def test_a_program_that_ends_while_no_broker_runs_is_accounted_for(new_sandbox: NewSandbox) -> None:
    """Its keeper leaves a record; the lease ends when the next broker reads it."""
    sandbox = new_sandbox()
    sandbox.write("wait.py", WAIT)
    client = sandbox.start("run", "wait.py")
    row = _running(sandbox)
    client.send_signal(signal.SIGSTOP)  # So that it does not start another broker.
    _kill(sandbox.status()["pid"])
    sandbox.write("go", "")
    wait_for(lambda: _zombie(row["pid"]), "the program has ended")
    wait_for(lambda: (sandbox.home / "runs" / "1.1" / "exit.json").exists(), "its record is there")
    client.send_signal(signal.SIGCONT)
    client.communicate(timeout=PATIENCE)
    assert client.returncode == 7
    assert sandbox.status()["leases"] == []


@pytest.mark.parametrize("option", [[], ["--cold"]], ids=["warm", "cold"])
def test_a_program_outlives_its_keeper(new_sandbox: NewSandbox, option: list[str]) -> None:
    """Its exit is still seen, with its code, and the lease holds until then."""
    sandbox = new_sandbox()
    sandbox.write("wait.py", WAIT)
    client = sandbox.start("run", *option, "wait.py")
    row = _running(sandbox)
    _kill(_keeper_of(row["pid"]))
    assert _running(sandbox)["pid"] == row["pid"]
    code, _ = _go(sandbox, client)
    assert code == 7
    assert sandbox.status()["leases"] == []
    assert (sandbox.work / "began").read_text() == "x"


def test_what_a_killed_keeper_leaves_is_ended_with_its_program(new_sandbox: NewSandbox) -> None:
    """Children of an orphaned program do not stay."""
    sandbox = new_sandbox()
    sandbox.write("wait.py", "import subprocess; subprocess.Popen(['sleep', '1000'])\n" + WAIT)
    client = sandbox.start("run", "wait.py")
    row = _running(sandbox)
    _kill(_keeper_of(row["pid"]))
    code, _ = _go(sandbox, client)
    assert code == 7
    assert not [words for words in sandbox.processes().values() if "sleep" in words]


@pytest.mark.every_python
def test_a_program_outlives_its_nursery_and_the_next_starts_warm(new_sandbox: NewSandbox) -> None:
    """The nursery comes back by itself."""
    sandbox = new_sandbox()
    sandbox.write("wait.py", WAIT)
    client = sandbox.start("run", "wait.py")
    row = _running(sandbox)
    (nursery,) = sandbox.status()["nurseries"]
    _kill(nursery["pid"])
    sandbox.write("next.py", "print('next')")
    again = sandbox.sublet("run", "next.py", check=True)
    assert again.stdout == "next\n"
    assert "started warm" in again.stderr
    assert _running(sandbox)["pid"] == row["pid"]
    code, _ = _go(sandbox, client)
    assert code == 7


def test_broker_nursery_and_keeper_at_once(new_sandbox: NewSandbox) -> None:
    """Nobody is left who could wait for the program: it says itself how it ended."""
    sandbox = new_sandbox()
    sandbox.write("wait.py", WAIT)
    client = sandbox.start("run", "wait.py")
    row = _running(sandbox)
    status = sandbox.status()
    client.send_signal(signal.SIGSTOP)
    victims = [_keeper_of(row["pid"]), status["nurseries"][0]["pid"], status["pid"]]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    client.send_signal(signal.SIGCONT)
    code, _ = _go(sandbox, client)
    assert code == 7
    assert sandbox.status()["leases"] == []


def test_a_job_that_waits_outlives_the_broker(new_sandbox: NewSandbox) -> None:
    """It keeps its place and runs when there is room."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="2GiB")
    sandbox.write("wait.py", WAIT)
    sandbox.write("second.py", "print('second')")
    first = sandbox.start("run", "--memory", "1GiB", "wait.py")
    _running(sandbox)
    second = sandbox.start("run", "--memory", "1GiB", "second.py")
    wait_for(lambda: sandbox.status()["waiting"], "the second waits")
    _kill(sandbox.status()["pid"])
    wait_for(
        lambda: [row for row in sandbox.status()["waiting"] if "needs 1.0 GiB" in row["reason"]],
        "the second waits again, for room",
    )
    code, _ = _go(sandbox, first)
    assert code == 7
    out, said = second.communicate(timeout=PATIENCE)
    assert (second.returncode, out) == (0, "second\n"), said


def test_a_waiting_job_is_dropped_when_its_client_dies_with_the_broker(
    new_sandbox: NewSandbox,
) -> None:
    """Nobody wants it any more."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="2GiB")
    sandbox.write("wait.py", WAIT)
    first = sandbox.start("run", "--memory", "1GiB", "wait.py")
    _running(sandbox)
    second = sandbox.start("run", "--memory", "1GiB", "wait.py")
    wait_for(lambda: sandbox.status()["waiting"], "the second waits")
    pid = sandbox.status()["pid"]
    second.kill()
    _kill(pid)
    second.communicate()
    wait_for(lambda: not sandbox.status()["waiting"], "it waits no longer")
    assert _go(sandbox, first)[0] == 7


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm_of_kills_loses_no_run_and_runs_none_twice(
    new_sandbox: NewSandbox, seed: int
) -> None:
    """Broker, nursery and keepers die at random moments while twelve programs come and go."""
    dice = random.Random(seed)
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="2GiB")
    sandbox.write(
        "job.py",
        "import sys, time\n"
        "with open(f'began-{sys.argv[1]}', 'a') as file: file.write('x')\n"
        "import tensorflow as tf\n"
        "x = tf.zeros([256, 256])\n"
        "for _ in range(10): x = x + 1; time.sleep(0.05)\n"
        "with open(f'ended-{sys.argv[1]}', 'a') as file: file.write(str(float(x[0, 0])))\n"
        "sys.exit(40 + int(sys.argv[1]))\n",
    )
    sandbox.warm()
    clients = [sandbox.start("run", "--memory", "256MiB", "job.py", str(i)) for i in range(12)]
    kills = 0
    while any(client.poll() is None for client in clients):
        time.sleep(dice.uniform(0.02, 0.4))
        if kills < 25 and (victim := _victim(sandbox, dice)) is not None:
            os.kill(victim, signal.SIGKILL)
            kills += 1
    outputs = [client.communicate() for client in clients]
    assert kills >= 5
    for number, (client, (_, said)) in enumerate(zip(clients, outputs, strict=True)):
        assert (sandbox.work / f"began-{number}").read_text() == "x", (number, said)
        assert (sandbox.work / f"ended-{number}").read_text() == "10.0", (number, said)
        # A program that had to start cold while its nursery was dead cannot say itself how it
        # ended: with its keeper and the broker killed too, only its code is lost, and that is said.
        unseen = client.returncode == 255 and "nobody saw its exit code" in said
        assert client.returncode == 40 + number or (unseen and "started cold" in said), said
    status = sandbox.status()
    assert (status["leases"], status["waiting"]) == ([], [])
    assert status["devices"][0]["leased"] == 0


def _victim(sandbox: Sandbox, dice: random.Random) -> int | None:
    """A broker, a nursery or a keeper: never a program, never a client."""
    by_kind: dict[str, list[int]] = {"broker": [], "nursery": [], "keeper": []}
    for pid, words in sandbox.processes().items():
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            continue
        if name == "sublet-keeper":
            by_kind["keeper"].append(pid)
        elif "sublet.broker" in words:
            by_kind["broker"].append(pid)
        elif "import nursery" in words:
            by_kind["nursery"].append(pid)
    kinds = [kind for kind, pids in by_kind.items() if pids]
    if not kinds:
        return None
    return dice.choice(by_kind[dice.choice(kinds)])
