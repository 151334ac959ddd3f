"""A time limit holds without a broker, and gives the program the time to save."""

import os
import signal

from sublet.formats import attempt_files
from sublet.keeper.time_limit import TimeLimit
from support.launcher_process import LauncherProcess
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


def test_a_program_over_its_time_is_warned_and_may_save(launcher: LauncherProcess) -> None:
    attempt = launcher.start("1.1", SAVE, time=ENOUGH, grace=60.0)
    ended = attempt.ended()
    assert (os.waitstatus_to_exitcode(ended["status"]), ended["stopped"]) == (5, "time limit")
    assert b"saved" in attempt.log.read_bytes()


def test_one_that_does_not_listen_is_killed_with_all_it_started(launcher: LauncherProcess) -> None:
    """Children that went away with setsid, too."""
    attempt = launcher.start("1.1", DEAF, time=ENOUGH, grace=0.2)
    ended = attempt.ended()
    assert (os.WTERMSIG(ended["status"]), ended["stopped"]) == (signal.SIGKILL, "time limit")
    wait_for(lambda: not attempt.members(), "its tree is gone")


def test_the_limit_holds_while_no_broker_runs(launcher: LauncherProcess) -> None:
    attempt = launcher.start("1.1", SAVE, time=1.5, grace=60.0)
    launcher.kill_process()
    ended = wait_for(
        lambda: attempt_files.read(attempt.directory, "exit.json"), "there is a record"
    )
    assert ended["stopped"] == "time limit"
    assert ended["ran"] >= 1.5


def test_the_limit_holds_after_the_keeper_was_killed(launcher: LauncherProcess) -> None:
    """The broker goes on counting."""
    attempt = launcher.start("1.1", SAVE, time=ENOUGH, grace=60.0)
    attempt.says("up")
    attempt.kill_keeper()
    ended = attempt.ended()
    assert (os.waitstatus_to_exitcode(ended["status"]), ended["stopped"]) == (5, "time limit")


def test_a_pause_does_not_count(launcher: LauncherProcess) -> None:
    """In the pause, more time than the limit goes by."""
    attempt = launcher.start("1.1", SAVE, time=ENOUGH, grace=60.0)
    attempt.says("up")
    attempt.call("pause", True)
    wait_for(attempt.stands, "it stands")
    paused = attempt_files.read(attempt.directory, "runtime.json")
    assert paused is not None
    counter = launcher.start("2.1", f"import time; time.sleep({ENOUGH + 0.5})")
    counter.ended()
    assert attempt.members()
    attempt.call("pause", False)
    ended = attempt.ended()
    assert ended["stopped"] == "time limit"
    resumed = attempt_files.read(attempt.directory, "runtime.json")
    assert resumed is not None
    assert resumed["spent"] == paused["spent"] < ENOUGH


def test_a_program_that_is_paused_has_no_end_of_time() -> None:
    paused = TimeLimit(1.0, paused=True, spent=0.9)
    assert paused.left() == float("inf")
    assert TimeLimit(None).left() == float("inf")
    assert TimeLimit(1.0, spent=2.0).left() <= 0
