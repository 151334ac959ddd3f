"""Trees that have lost their keeper: all of it ends with its program, and nobody else does."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sublet.backends.local.orphan import Orphan
from sublet.domain.job import Process
from sublet.keeper import process_tree
from sublet.reactor import Reactor
from support.launcher_harness import LaunchedAttempt, LauncherHarness
from support.sandbox import wait_for

DETACHED = """
import os, subprocess, sys, time
# A daemon as in the textbook, and nothing of ours in its environment.
code = (
    "import os, time\\n"
    "if os.fork(): os._exit(0)\\n"
    "print('daemon', os.getpid(), flush=True)\\n"
    "time.sleep(1000)"
)
subprocess.run([sys.executable, "-c", code], env={}, start_new_session=True)
while not os.path.exists("go"): time.sleep(0.02)
sys.exit(7)
"""


def _daemon(launched: LaunchedAttempt) -> int:
    """The process that has detached itself."""
    launched.says("daemon")
    lines = launched.log.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("daemon"))


def test_a_daemon_with_an_empty_environment_ends_with_its_job(
    any_launcher: LauncherHarness,
) -> None:
    """Though the keeper that knew it was killed."""
    launched = any_launcher.start("1.1", DETACHED)
    daemon = _daemon(launched)
    try:
        launched.kill_keeper()
        (any_launcher.work / "go").touch()
        assert os.waitstatus_to_exitcode(launched.ended()["status"]) == 7
        assert process_tree.start_time(daemon) is None
    finally:
        process_tree.send([daemon], signal.SIGKILL)


def test_a_later_broker_finds_the_daemon_too(any_launcher: LauncherHarness) -> None:
    launched = any_launcher.start("1.1", DETACHED)
    daemon = _daemon(launched)
    try:
        launched.kill_keeper()
        any_launcher.fire()
        any_launcher.hire()
        any_launcher.call("adopt", "1.1")
        any_launcher.await_report("started", "1.1")
        launched.call("stop", "cancelled", 1.0)
        launched.ended()
        assert process_tree.start_time(daemon) is None
    finally:
        process_tree.send([daemon], signal.SIGKILL)


def test_a_control_group_knows_its_tree_without_a_witness(launcher: LauncherHarness) -> None:
    launched = launcher.start("1.1", DETACHED)
    if launched.group() is None:
        pytest.skip("this user may make no control group (version 2)")
    daemon = _daemon(launched)
    try:
        os.kill(launched.witness, signal.SIGKILL)
        launched.kill_keeper()
        launched.call("stop", "cancelled", 1.0)
        launched.ended()
        assert process_tree.start_time(daemon) is None
    finally:
        process_tree.send([daemon], signal.SIGKILL)


def test_a_session_that_has_got_the_number_of_a_dead_process_is_left_alone(tmp_path: Path) -> None:
    """Its leader has ended, so nothing but the start time tells it from the one that was ours."""
    code = (
        "import os, time\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "print(os.getsid(0), os.getpid(), flush=True)\n"
        "time.sleep(1000)\n"
    )
    stranger = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert stranger.stdout is not None
    connection, member = map(int, stranger.stdout.readline().split())
    stranger.wait()
    reactor, gone = Reactor(), []
    try:
        worker = Process(connection, 1)
        orphan = Orphan(
            reactor,
            str(tmp_path),
            worker,
            None,
            "no such mark",
            None,
            lambda grace: None,
            lambda: gone.append(1),
        )
        orphan.stop(0.0)
        orphan.watch()
        deadline = time.monotonic() + 60
        while not gone and time.monotonic() < deadline:
            reactor.run_once()
        orphan.close()
        assert gone
        assert process_tree.start_time(member) is not None
    finally:
        process_tree.send([member], signal.SIGKILL)
        stranger.stdout.close()
        reactor.close()


def test_a_signal_goes_to_the_process_that_was_meant_or_to_nobody() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    start = process_tree.start_time(child.pid)
    assert start is not None
    process_tree.send_exactly({child.pid: start + 1}, signal.SIGKILL)
    assert child.poll() is None
    process_tree.send_exactly({child.pid: start}, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


WAIT = """
import os, sys, time
print("up", flush=True)
while not os.path.exists("go"): time.sleep(0.02)
sys.exit(7)
"""


@pytest.mark.parametrize("first", ["keeper", "broker"])
def test_the_exit_code_is_seen_though_broker_and_keeper_are_killed(
    any_launcher: LauncherHarness, first: str
) -> None:
    """One after the other, in any order; the program ends while nobody else is there."""
    launcher = any_launcher
    launched = launcher.start("1.1", WAIT)
    launched.says("up")
    if first == "keeper":
        launched.kill_keeper()
        launcher.fire()
    else:
        launcher.fire()
        launched.kill_keeper()
    (launcher.work / "go").touch()
    wait_for(lambda: process_tree.start_time(launched.worker) is None, "the program has ended")
    launcher.hire()
    launcher.call("adopt", "1.1")
    assert os.waitstatus_to_exitcode(launched.ended()["status"]) == 7


def test_a_signal_that_ends_an_orphan_is_seen(launcher: LauncherHarness) -> None:
    launched = launcher.start("1.1", WAIT)
    launched.says("up")
    launcher.fire()
    launched.kill_keeper()
    os.kill(launched.worker, signal.SIGSEGV)
    wait_for(lambda: process_tree.start_time(launched.worker) is None, "the program has ended")
    launcher.hire()
    launcher.call("adopt", "1.1")
    assert os.waitstatus_to_exitcode(launched.ended()["status"]) == -signal.SIGSEGV


def test_a_witness_ends_with_its_tree(launcher: LauncherHarness) -> None:
    """Whether its keeper ends in order or is killed."""
    kept, killed = launcher.start("1.1", WAIT), launcher.start("2.1", WAIT)
    witnesses = [kept.witness, killed.witness]
    killed.kill_keeper()
    (launcher.work / "go").touch()
    kept.ended()
    wait_for(lambda: not any(map(process_tree.start_time, witnesses)), "both have ended")
