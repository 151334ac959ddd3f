"""Whoever is killed while calls run: no call is lost without a word, and no process is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.sandbox import PATIENCE, Sandbox, wait_for

_PARENT = """
import os, sys
sys.path.insert(0, {tests!r})
import sublet
from support import functions
"""


def start(sandbox: Sandbox, code: str) -> "subprocess.Popen[str]":
    """A program that has a pool."""
    tests = str(Path(__file__).parents[1])
    script = sandbox.write("parent.py", _PARENT.format(tests=tests) + code)
    return subprocess.Popen(
        [sys.executable, str(script)],
        cwd=sandbox.work,
        env=sandbox.environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(child: "subprocess.Popen[str]") -> str:
    output, errors = child.communicate(timeout=90)
    assert child.returncode == 0, errors
    return output


def broker(sandbox: Sandbox) -> int:
    pid: int = sandbox.status()["pid"]
    return pid


def running(sandbox: Sandbox, notes: Path, count: int) -> list[int]:
    """The workers that have said that they run."""
    notes.mkdir(exist_ok=True)
    wait_for(lambda: len(list(notes.iterdir())) >= count, f"{count} calls run")
    return [int(note.name) for note in notes.iterdir()]


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_worker_is_left_when_the_parent_is_killed(sandbox: Sandbox, how: signal.Signals) -> None:
    notes = sandbox.work / "notes"
    notes.mkdir()
    code = f"""
with sublet.Pool(2, memory="64MiB") as pool:
    futures = [pool.submit(functions.note_and_wait, {str(notes)!r}) for _ in range(5)]
    futures[0].result()
"""
    parent = start(sandbox, code)
    workers = running(sandbox, notes, 2)
    parent.send_signal(how)
    parent.communicate(timeout=PATIENCE)
    assert parent.returncode != 0
    wait_for(lambda: gone(workers), "the workers are gone")
    wait_for(lambda: not sandbox.status()["leases"], "no lease is held")


def test_calls_go_on_when_the_broker_is_killed(sandbox: Sandbox) -> None:
    """The one that runs comes to its end, and those that wait find the next broker."""
    gate = sandbox.work / "gate"
    begun = sandbox.work / "begun"
    code = f"""
def begin(path, gate):
    open(path, "w").close()
    return functions.wait_for_file(gate)

with sublet.Pool(1, memory="64MiB") as pool:
    first = pool.submit(begin, {str(begun)!r}, {str(gate)!r})
    others = [pool.submit(functions.double, n) for n in range(3)]
    print(first.result() == {str(gate)!r}, [other.result() for other in others])
"""
    parent = start(sandbox, code)
    wait_for(begun.exists, "the first call runs")
    os.kill(broker(sandbox), signal.SIGKILL)
    gate.touch()
    assert finish(parent) == "True [0, 2, 4]\n"


def test_a_reused_worker_that_was_killed_while_idle_costs_no_call(sandbox: Sandbox) -> None:
    """What it had not read, another does. (A process that is just being killed may still read.)"""
    code = """
import signal
with sublet.Pool(1, memory="64MiB", reuse=True) as pool:
    first = pool.submit(functions.pid).result()
    os.kill(first, signal.SIGKILL)
    while os.path.exists(f"/proc/{first}/fd/3"):
        pass
    second = pool.submit(functions.pid).result()
    print(first != second)
"""
    assert finish(start(sandbox, code)) == "True\n"


def test_a_killed_keeper_costs_its_own_call_at_most(sandbox: Sandbox) -> None:
    notes = sandbox.work / "notes"
    code = f"""
with sublet.Pool(2, memory="64MiB") as pool:
    hurt = pool.submit(functions.note_and_wait, {str(notes)!r})
    try:
        hurt.result()
    except sublet.WorkerDied as error:
        print("died")
    print(pool.submit(functions.double, 2).result())
"""
    notes.mkdir()
    parent = start(sandbox, code)
    (worker,) = running(sandbox, notes, 1)
    stat = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()
    os.kill(int(stat[1]), signal.SIGKILL)
    os.kill(worker, signal.SIGKILL)
    assert finish(parent) == "died\n4\n"


def test_the_end_of_the_program_waits_for_what_was_submitted(sandbox: Sandbox) -> None:
    """As other executors do, also without a `with` block."""
    code = """
pool = sublet.Pool(1, memory="64MiB")
pool.submit(functions.double, 21).add_done_callback(lambda done: print(done.result()))
"""
    assert finish(start(sandbox, code)) == "42\n"


def test_a_pool_is_refused_in_a_fork_in_which_tensorflow_would_hang(sandbox: Sandbox) -> None:
    """And one that was inherited is refused in any fork."""
    code = """
import tensorflow as tf
inherited = sublet.Pool(1, memory="64MiB")
if os.fork() == 0:
    try:
        inherited.submit(functions.double, 1)
    except sublet.SubletError as error:
        print(error, flush=True)
    with sublet.Pool(1, memory="64MiB") as pool:
        print(pool.submit(functions.double, 4).result(), flush=True)
    os._exit(0)
os.wait()
tf.constant(1.0) + 1.0
if os.fork() == 0:
    try:
        sublet.Pool(1)
    except sublet.SubletError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
with sublet.Pool(1, memory="64MiB") as pool:
    print(pool.submit(functions.double, 5).result())
"""
    first, second, third, fourth = finish(start(sandbox, code)).splitlines()
    assert "belongs to process" in first
    assert second == "8"
    assert "would hang" in third
    assert fourth == "10"


def test_output_of_any_bytes_goes_where_the_programs_goes(sandbox: Sandbox) -> None:
    code = """
with sublet.Pool(1, memory="64MiB") as pool:
    pool.submit(functions.print_bytes).result()
"""
    tests = str(Path(__file__).parents[1])
    script = sandbox.write("parent.py", _PARENT.format(tests=tests) + code)
    done = sandbox.python(str(script), text=False)
    assert done.returncode == 0
    assert done.stdout == b"\xff\x00\xfe raw\ntext\n"
