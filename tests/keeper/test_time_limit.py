"""A time limit holds without a broker, and gives the program the time to save."""

import os
import signal

from sublet.formats import attempt_files
from sublet.keeper.time_limit import TimeLimit
from support.launcher_harness import LauncherHarness
from support.sandbox import wait_for

ENOUGH = 5.0
"""Seconds in which a program is up and listens to signals, on a machine under any load."""
SAVE = """
import signal, sys, time
def save(*_): print('saved', flush=True); sys.exit(5)
signal.signal(signal.SIGTERM, save)
print('up', flush=True)
while True: time.sleep(1)
"""
DEAF = """
import signal, time, os
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0: os.setsid()
print('up', flush=True)
while True: time.sleep(1)
"""


def test_a_program_over_its_time_is_warned_and_may_save(launcher: LauncherHarness) -> None:
    launched = launcher.start("1.1", SAVE, time=ENOUGH, grace=60.0)
    ending = launched.ended()
    assert (os.waitstatus_to_exitcode(ending["status"]), ending["stopped"]) == (5, "time limit")
    assert b"saved" in launched.log.read_bytes()


def test_one_that_does_not_listen_is_killed_with_all_it_started(launcher: LauncherHarness) -> None:
    """Children that went away with setsid, too."""
    launched = launcher.start("1.1", DEAF, time=ENOUGH, grace=0.2)
    ending = launched.ended()
    assert (os.WTERMSIG(ending["status"]), ending["stopped"]) == (signal.SIGKILL, "time limit")
    wait_for(lambda: not launched.members(), "its tree is gone")


def test_the_limit_holds_while_no_broker_runs(launcher: LauncherHarness) -> None:
    launched = launcher.start("1.1", SAVE, time=1.5, grace=60.0)
    launcher.fire()
    ending = wait_for(
        lambda: attempt_files.read(launched.directory, "exit.json"), "there is a record"
    )
    assert ending["stopped"] == "time limit"
    assert ending["ran"] >= 1.5


def test_the_limit_holds_after_the_keeper_was_killed(launcher: LauncherHarness) -> None:
    """The broker goes on counting."""
    launched = launcher.start("1.1", SAVE, time=ENOUGH, grace=60.0)
    launched.says("up")
    launched.kill_keeper()
    ending = launched.ended()
    assert (os.waitstatus_to_exitcode(ending["status"]), ending["stopped"]) == (5, "time limit")


def test_a_pause_does_not_count(launcher: LauncherHarness) -> None:
    """In the pause, more time than the limit goes by."""
    launched = launcher.start("1.1", SAVE, time=ENOUGH, grace=60.0)
    launched.says("up")
    launched.call("pause", True)
    wait_for(launched.stands, "it stands")
    paused = attempt_files.read(launched.directory, "runtime.json")
    assert paused is not None
    counter = launcher.start("2.1", f"import time; time.sleep({ENOUGH + 0.5})")
    counter.ended()
    assert launched.members()
    launched.call("pause", False)
    ending = launched.ended()
    assert ending["stopped"] == "time limit"
    resumed = attempt_files.read(launched.directory, "runtime.json")
    assert resumed is not None
    assert resumed["spent"] == paused["spent"] < ENOUGH


def test_a_program_that_is_paused_has_no_end_of_time() -> None:
    paused = TimeLimit(1.0, paused=True, spent=0.9)
    assert paused.left() == float("inf")
    assert TimeLimit(None).left() == float("inf")
    assert TimeLimit(1.0, spent=2.0).left() <= 0
