"""Several programs on one device: each gets its lease, the next waits and is told for what."""

import json
import time
from collections.abc import Callable
from typing import Any

from sublet.units import format_bytes
from support.sandbox import PATIENCE, Sandbox, wait_for
from support.terminal import Terminal

NewSandbox = Callable[..., Sandbox]

HOLD = """
import os, sys, time
import tensorflow as tf
x = tf.zeros([1024, 1024, 8])
print('holding', flush=True)
while not os.path.exists('go'): time.sleep(0.02)
"""


def _holding(sandbox: Sandbox, count: int) -> list[dict[str, Any]]:
    def rows() -> list[dict[str, Any]] | None:
        running = [row for row in sandbox.status()["leases"] if row["state"] == "running"]
        return running if len(running) == count else None

    return wait_for(rows, f"{count} programs run")  # type: ignore[no-any-return]


def test_three_terminals_share_a_device_and_the_fourth_waits(new_sandbox: NewSandbox) -> None:
    """The fourth is told what it waits for and who holds it, and starts when there is room."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="2GiB")
    sandbox.write("hold.py", HOLD)
    three = [Terminal(sandbox, "run", "--memory", "300MiB", "hold.py") for _ in range(3)]
    for terminal in three:
        terminal.expect("holding")
    rows = _holding(sandbox, 3)
    assert [row["lease"] for row in rows] == [300 << 20] * 3
    assert all(row["charge"] > row["lease"] for row in rows)

    fourth = Terminal(sandbox, "run", "--memory", "700MiB", "hold.py")
    fourth.expect("waiting: needs 700 MiB")
    fourth.expect("GiB free; held by #1 hold.py")
    (waiting,) = sandbox.status()["waiting"]
    assert "held by #1 hold.py" in waiting["reason"]
    table = sandbox.sublet("status", check=True, env=sandbox.environ | {"COLUMNS": "80"}).stdout
    assert "#4 hold.py has waited" in table
    assert max(map(len, table.splitlines())) <= 80

    sandbox.write("go", "")
    for terminal in [*three, fourth]:
        assert terminal.wait() == 0
    assert "holding" in fourth.screen
    assert sandbox.status()["devices"][0]["leased"] == 0


def test_leases_never_add_up_to_more_than_the_device(new_sandbox: NewSandbox) -> None:
    """However many ask at once."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="2GiB")
    sandbox.write("brief.py", "import tensorflow as tf; tf.zeros([1024])")
    clients = [sandbox.start("run", "-q", "--memory", "400MiB", "brief.py") for _ in range(8)]
    while any(client.poll() is None for client in clients):
        (device,) = sandbox.status()["devices"]
        assert device["leased"] + device["nursery"] + device["others"] <= 2 << 30
    for client in clients:
        client.communicate()
        assert client.returncode == 0


def test_a_waiting_program_can_be_given_up(new_sandbox: NewSandbox) -> None:
    """Ctrl-C ends the wait; nothing is left of it."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="2GiB")
    sandbox.write("hold.py", HOLD)
    first = sandbox.start("run", "--memory", "1GiB", "hold.py")
    _holding(sandbox, 1)
    second = Terminal(sandbox, "run", "--memory", "1GiB", "hold.py")
    second.expect("waiting: needs 1.0 GiB")
    second.type("\x03")
    assert second.wait() == 130
    assert "interrupted while waiting" in second.screen
    wait_for(lambda: not sandbox.status()["waiting"], "nobody waits")
    sandbox.write("go", "")
    first.communicate(timeout=PATIENCE)
    assert first.returncode == 0


def test_down_names_what_runs_and_lets_it_go_on(new_sandbox: NewSandbox) -> None:
    """`--stop` ends it, too."""
    sandbox = new_sandbox()
    sandbox.write("hold.py", HOLD)
    client = sandbox.start("run", "hold.py")
    (row,) = _holding(sandbox, 1)
    answer = sandbox.sublet("down", check=True)
    assert f"#1 hold.py: keeps running (pid {row['pid']})" in answer.stdout
    assert _holding(sandbox, 1)[0]["pid"] == row["pid"]

    answer = sandbox.sublet("down", "--stop", check=True)
    assert "#1 hold.py: stopped" in answer.stdout
    client.communicate(timeout=PATIENCE)
    assert client.returncode == 128 + 15


def test_down_stays_down_until_it_is_needed(new_sandbox: NewSandbox) -> None:
    """A program that goes on does not bring the broker back before it ends, with its code."""
    sandbox = new_sandbox()
    sandbox.write("hold.py", HOLD + "sys.exit(9)\n")
    client = sandbox.start("run", "hold.py")
    _holding(sandbox, 1)
    sandbox.sublet("down", check=True)

    def brokers() -> list[str]:
        return [words for words in sandbox.processes().values() if "sublet.broker" in words]

    wait_for(lambda: not brokers(), "the broker has gone")
    # Twice as long as the command takes to look for a new one.
    time.sleep(0.5)
    assert not brokers()
    sandbox.write("go", "")
    client.communicate(timeout=PATIENCE)
    assert client.returncode == 9


def test_down_with_stop_ends_those_who_wait_too(new_sandbox: NewSandbox) -> None:
    """Nobody is started into a broker that ends."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="2GiB")
    sandbox.write("hold.py", HOLD)
    clients = [sandbox.start("run", "--memory", "1GiB", "hold.py") for _ in range(3)]
    wait_for(lambda: len(sandbox.status()["waiting"]) == 2, "two wait")
    _holding(sandbox, 1)
    answer = sandbox.sublet("down", "--stop", check=True)
    assert answer.stdout.count("hold.py: not started") == 2
    reply = ""
    for client in clients:
        reply += client.communicate(timeout=PATIENCE)[1]
        assert client.returncode == 143
    assert reply.count("the program was ended: `sublet down --stop`") == 1
    assert reply.count("the program was not started: `sublet down --stop` came first") == 2
    wait_for(lambda: not sandbox.processes(), "all has ended")


def test_memory_is_asked_in_five_ways(either_sandbox: Sandbox) -> None:
    """A size, a share, a range, as little as it needs, and what was learned."""
    sandbox = either_sandbox
    sandbox.write("use.py", "import tensorflow as tf; x = tf.zeros([1024, 1024, 16])")
    total = 4 << 30

    def run(*words: str) -> dict[str, Any]:
        sandbox.sublet("run", "--report", "report.json", *words, "use.py", check=True)
        report: dict[str, Any] = json.loads((sandbox.work / "report.json").read_text())
        return report

    assert run("--memory", "256MiB")["lease"] == 256 << 20
    assert run("--memory", "25%")["lease"] == total // 4
    assert run("--memory", "100MiB..1GiB")["lease"] == 100 << 20
    assert run("--memory", "grow")["lease"] < total // 8
    learned = run()
    # Where it had all the room, the tensor got a piece twice as large.
    assert 64 << 20 <= learned["peak"] <= learned["lease"] <= 192 << 20


def test_a_program_never_seen_gets_the_stated_default(either_sandbox: Sandbox) -> None:
    """A quarter of the device, and the next run what it needed."""
    sandbox = either_sandbox
    sandbox.write("new.py", "import tensorflow as tf; x = tf.zeros([1024, 1024])")
    first = sandbox.sublet("run", "new.py", check=True)
    assert "lease 1.0 GiB" in first.stderr
    second = sandbox.sublet("run", "--report", "report.json", "new.py", check=True)
    report = json.loads((sandbox.work / "report.json").read_text())
    assert f"lease {format_bytes(report['lease'])}" in second.stderr
    assert report["peak"] <= report["lease"] <= 128 << 20


def test_processors_are_dealt_out(sandbox: Sandbox) -> None:
    """--cpus pins a program, and TensorFlow sizes its pools by that."""
    sandbox.write("cpus.py", "import os; print(len(os.sched_getaffinity(0)))")
    assert sandbox.sublet("run", "-q", "--cpus", "1", "cpus.py", check=True).stdout == "1\n"
    refused = sandbox.sublet("run", "--cpus", "4096", "cpus.py")
    assert refused.returncode == 2
    assert "--cpus 4096" in refused.stderr


def test_the_python_face_runs_and_reports(sandbox: Sandbox) -> None:
    """`sublet.run` from a program of one's own, in threads too."""
    sandbox.write("job.py", "import sys; sys.exit(int(sys.argv[1]))")
    code = (
        "import sublet\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor() as pool:\n"
        "    go = lambda n: sublet.run(['job.py', str(n)], memory='64MiB').code\n"
        "    print(list(pool.map(go, range(4))), sublet.status().leases)\n"
    )
    answer = sandbox.python("-c", code, check=True)
    assert answer.stdout == "[0, 1, 2, 3] ()\n"
