"""Somebody is stopped and answers nobody: the others go on, and what waits for it has a bound."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sublet.client import connection, jobs
from sublet.errors import BrokerGone
from sublet.formats import packets
from sublet.keeper import process_tree
from support.queue import HOLD, ended, reached, shell, submit
from support.sandbox import PATIENCE, Sandbox, wait_for

NewSandbox = Callable[..., Sandbox]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process by SIGSTOP, until the dedent."""
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: process_tree.is_stopped(pid), "it stands still")
    try:
        yield
    finally:
        process_tree.send([pid], signal.SIGCONT)


def nursery(sandbox: Sandbox) -> int:
    (found,) = sandbox.status()["nurseries"]
    return int(found["pid"])


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


HOLD_IT = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)"


def _holds(sandbox: Sandbox) -> bool:
    """Whether a lease was granted; its program cannot run as long as the nursery stands still."""
    return bool(sandbox.status()["leases"])


def test_a_stopped_nursery_is_replaced_and_programs_start(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox()
    sandbox.warm()
    sandbox.write("hello.py", "print('hello')")
    before = nursery(sandbox)
    with stopped(before):
        ran = sandbox.sublet("run", "hello.py", check=True)
        assert ran.stdout == "hello\n"
        assert nursery(sandbox) != before
        wait_for(lambda: process_tree.start_time(before) is None, "the old one has gone")
    assert sandbox.status()["leases"] == []


@pytest.mark.every_python
def test_a_start_that_hangs_is_ended_by_its_user(new_sandbox: NewSandbox) -> None:
    """By Ctrl-C, Ctrl-\\, `kill` and a closed terminal. And the lease is free."""
    sandbox = new_sandbox()
    sandbox.write("hold.py", HOLD_IT)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
        sandbox.warm()
        with stopped(nursery(sandbox)):
            client = sandbox.start("run", "hold.py")
            wait_for(lambda: _holds(sandbox), "it is being started")
            client.send_signal(number)
            _, said = client.communicate(timeout=PATIENCE)
            assert client.returncode == -number, said
            wait_for(lambda: not _holds(sandbox), "the lease has ended")


def test_a_job_whose_start_hangs_can_be_cancelled(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox()
    sandbox.warm()
    sandbox.write("hold.py", HOLD_IT)
    with stopped(nursery(sandbox)):
        number = submit(sandbox, "hold.py")
        wait_for(lambda: _holds(sandbox), "it is being started")
        sandbox.sublet("cancel", str(number), check=True)
        assert ended(sandbox, number)[0]["cause"] == "cancelled"
        assert not _holds(sandbox)


def test_a_job_whose_keeper_is_stopped_can_be_cancelled(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox()
    number = shell(sandbox, HOLD.format("go"))
    with stopped(_parent(reached(sandbox, number, "running")["pid"])):
        sandbox.sublet("cancel", str(number), check=True)
        assert ended(sandbox, number)[0]["cause"] == "cancelled"


def test_a_time_limit_holds_though_the_keeper_is_stopped(new_sandbox: NewSandbox) -> None:
    """And though the broker that had started it was killed."""
    sandbox = new_sandbox()
    for kill in (False, True):
        number = shell(sandbox, HOLD.format("go"), "--time", "5s")
        with stopped(_parent(reached(sandbox, number, "running")["pid"])):
            if kill:
                os.kill(sandbox.status()["pid"], signal.SIGKILL)
            assert ended(sandbox, number)[0]["cause"] == "time limit"


def test_a_program_is_ended_by_its_user_though_the_broker_is_stopped(
    new_sandbox: NewSandbox,
) -> None:
    sandbox = new_sandbox()
    command = f"trap 'exit 9' INT; touch began; {HOLD.format('go')}"
    client = sandbox.start("run", "--memory", "64MiB", "sh", "-c", command)
    wait_for((sandbox.work / "began").exists, "it runs")
    with stopped(sandbox.status()["pid"]):
        client.send_signal(signal.SIGINT)
        _, said = client.communicate(timeout=PATIENCE)
        assert client.returncode == 9, said


def test_a_stopped_keeper_hangs_nobody_else(
    new_sandbox: NewSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if it is sent more than its socket can hold."""
    sandbox = new_sandbox()
    monkeypatch.setenv("SUBLET_HOME", str(sandbox.home))
    number = shell(sandbox, f"{HOLD.format('go')}; exit 4")
    with stopped(_parent(reached(sandbox, number, "running")["pid"])):
        for _ in range(300):
            jobs.act("pause", [number])
            jobs.act("resume", [number])
        later = shell(sandbox, "exit 5")
        assert ended(sandbox, later)[0]["exit"] == 5
    sandbox.write("go", "")
    assert ended(sandbox, number)[0]["exit"] == 4


def test_who_asks_a_stopped_broker_is_told_so(
    new_sandbox: NewSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = new_sandbox()
    broker = sandbox.status()["pid"]
    monkeypatch.setenv("SUBLET_HOME", str(sandbox.home))
    monkeypatch.setattr(connection, "ANSWERS_WITHIN", 0.5)
    with stopped(broker), pytest.raises(BrokerGone, match=f"process {broker}.* does not answer"):
        jobs.listing()
    assert jobs.listing().rows == ()


def test_a_link_never_waits_and_keeps_what_counts() -> None:
    """Of what says the same the last, of the rest the first, in their order."""
    ours, theirs = packets.pair()
    link = packets.Link(ours)
    assert link.put({"event": "started"})
    for number in range(5000):
        assert link.put({"sample": number, "pids": list(range(500))}, "sampled")
    assert link.put({"event": "ended"})
    for number in range(5000):
        assert link.put({"signal": number})
    heard = []
    theirs.setblocking(False)
    while True:
        link.flush()
        packet, _ = packets.receive(theirs) or ({}, [])
        if not packet:
            break
        heard.append(packet)
    assert heard[0] == {"event": "started"}
    assert [one["sample"] for one in heard if "sample" in one][-1] == 4999
    assert {"event": "ended"} in heard
    signals = [one["signal"] for one in heard if "signal" in one]
    assert signals == list(range(len(signals)))
    assert not link.waiting
    theirs.close()
    assert not link.put({"event": "ended"})
    ours.close()
