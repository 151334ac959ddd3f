"""A pause stops everything of a tree; nobody's death leaves it stopped against the user's will."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sublet.formats import attempt_files
from sublet.keeper import process_tree
from sublet.keeper.pausing import Pause
from support.launcher_process import Attempt, LauncherProcess
from support.sandbox import wait_for

COUNT = """
import time
print('up', flush=True)
while True:
    open('count', 'a').write('x')
    time.sleep(0.01)
"""
FORK = """
import os, time
print('up', flush=True)
for _ in range(400):
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            while True: open('count', 'a').write('x'); time.sleep(0.02)
        os._exit(0)
    os.wait()
    time.sleep(0.002)
time.sleep(1000)
"""


def _size(launcher: LauncherProcess) -> int:
    path = launcher.work / "count"
    return path.stat().st_size if path.exists() else 0


def _counts(launcher: LauncherProcess) -> None:
    before = _size(launcher)
    wait_for(lambda: _size(launcher) > before, "it counts on")


def _pause(attempt: Attempt) -> None:
    """One that stands because its share of the time is over is not paused yet: that is written down
    first."""
    attempt.call("pause", True)
    wait_for(lambda: _paused(attempt) and attempt.stands(), "it stands")


def _paused(attempt: Attempt) -> bool:
    return bool((attempt_files.read(attempt.directory, "runtime.json") or {}).get("paused"))


@pytest.fixture(params=["group", "signals"])
def any_launcher(launcher: LauncherProcess, request: pytest.FixtureRequest) -> LauncherProcess:
    """With a control group where the machine has one, and always without one."""
    if request.param == "signals":
        launcher.kill_process()
        os.environ["SUBLET_NO_CGROUP"] = "1"
        try:
            launcher.start_process()
        finally:
            del os.environ["SUBLET_NO_CGROUP"]
    return launcher


def test_a_paused_program_stands_and_goes_on_where_it_was(any_launcher: LauncherProcess) -> None:
    attempt = any_launcher.start("1.1", COUNT)
    _counts(any_launcher)
    _pause(attempt)
    before = _size(any_launcher)
    assert attempt.stands()
    assert _size(any_launcher) == before
    attempt.call("pause", False)
    _counts(any_launcher)
    assert attempt.members()


def test_a_tree_that_forks_meanwhile_does_not_escape(any_launcher: LauncherProcess) -> None:
    """Neither do children that have left for a session of their own."""
    attempt = any_launcher.start("1.1", FORK)
    wait_for(lambda: len(attempt.members()) > 20, "it has forked a lot")
    _pause(attempt)

    def rests() -> bool:
        before = (_size(any_launcher), sorted(attempt.members()))
        time.sleep(0.1)
        return (_size(any_launcher), sorted(attempt.members())) == before

    # What we look at may be forked behind our back, as it may behind the keeper's.
    wait_for(rests, "nothing of it writes or forks any more")
    attempt.call("pause", False)
    _counts(any_launcher)


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that does nothing."""
    child = subprocess.Popen(["sleep", "1000"])
    yield child.pid
    child.kill()
    child.wait()


def test_a_child_that_moves_up_the_tree_during_a_look_is_not_missed(sleeper: int) -> None:
    """Its parent ends just then: the look finds neither."""
    looks: Iterator[list[int]] = iter([[]])
    pause = Pause(lambda: next(looks, [sleeper]), None)
    pause.pause(True)
    pause.tick(time.monotonic())
    wait_for(lambda: process_tree.stands(sleeper), "it stands after this one tick")


def test_what_others_have_stopped_stays_stopped_after_a_pause(
    any_launcher: LauncherProcess,
) -> None:
    code = (
        "import subprocess, os, signal, time\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "os.kill(child.pid, signal.SIGSTOP)\n"
        "print('child', child.pid, '.', flush=True)\n" + COUNT
    )
    attempt = any_launcher.start("1.1", code)
    attempt.says("up")
    child = int(attempt.log.read_text().split()[1])
    _pause(attempt)
    attempt.call("pause", False)
    _counts(any_launcher)
    assert Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_paused_program_can_be_stopped_and_still_saves(any_launcher: LauncherProcess) -> None:
    """It is woken to hear SIGTERM, and the reason comes through as given."""
    code = (
        "import signal, sys\n"
        "def save(*_): print('saved', flush=True); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, save)\n" + COUNT
    )
    attempt = any_launcher.start("1.1", code)
    attempt.says("up")
    _pause(attempt)
    attempt.call("stop", "preempted", 60.0)
    ended = attempt.ended()
    assert (os.waitstatus_to_exitcode(ended["status"]), ended["stopped"]) == (3, "preempted")
    assert b"saved" in attempt.log.read_bytes()


def test_a_pause_outlives_the_broker_and_a_later_one_can_end_it(
    any_launcher: LauncherProcess,
) -> None:
    attempt = any_launcher.start("1.1", COUNT)
    _counts(any_launcher)
    _pause(attempt)
    any_launcher.kill_process()
    any_launcher.start_process()
    any_launcher.call("adopt", "1.1")
    any_launcher.await_report("started", "1.1")
    assert attempt.stands()
    attempt.call("pause", False)
    _counts(any_launcher)


def test_a_pause_outlives_its_keeper_and_the_program_does_too(
    any_launcher: LauncherProcess,
) -> None:
    """The kernel would hang up on it; the broker takes over, and it ends when it is asked to."""
    attempt = any_launcher.start("1.1", COUNT)
    _counts(any_launcher)
    _pause(attempt)
    attempt.kill_keeper()
    wait_for(attempt.stands, "it stands again")
    attempt.call("pause", False)
    _counts(any_launcher)
    attempt.call("pause", True)
    wait_for(attempt.stands, "it stands once more")
    attempt.call("stop", "cancelled", 60.0)
    ended = attempt.ended()
    assert (os.WTERMSIG(ended["status"]), ended["stopped"]) == (signal.SIGTERM, "cancelled")


def test_in_turns_a_program_stands_and_runs_until_they_are_over(launcher: LauncherProcess) -> None:
    attempt = launcher.start("1.1", COUNT)
    attempt.call("set_duty", 0.2)
    for _ in range(3):
        wait_for(attempt.stands, "it stands")
        _counts(launcher)
    attempt.call("set_duty", 1.0)
    wait_for(lambda: not attempt.stands(), "it runs")
    _counts(launcher)


def test_a_turn_is_divided_as_it_was_asked(sleeper: int) -> None:
    pause = Pause(lambda: [sleeper], None)
    pause.duty(0.2)
    pause.tick(10.0)
    wait_for(lambda: process_tree.stands(sleeper), "it stands")
    assert pause.due == pytest.approx(10.08)
    pause.tick(11.0)
    wait_for(lambda: not process_tree.stands(sleeper), "it runs")
    assert pause.due == pytest.approx(11.02)


@pytest.mark.parametrize("broker", ["lives", "dies first"])
def test_a_keeper_killed_between_turns_leaves_nothing_stopped(
    launcher: LauncherProcess, broker: str
) -> None:
    """The kernel wakes the worker even if nobody is left; a broker wakes the rest."""
    attempt = launcher.start("1.1", COUNT)
    _counts(launcher)
    attempt.call("set_duty", 0.01)
    wait_for(attempt.stands, "it stands")
    if broker == "dies first":
        launcher.kill_process()
    wait_for(attempt.stands, "it stands")
    attempt.kill_keeper()
    _counts(launcher)
    _counts(launcher)


def test_turns_and_pause_together_are_a_pause(launcher: LauncherProcess) -> None:
    attempt = launcher.start("1.1", COUNT)
    _counts(launcher)
    attempt.call("set_duty", 0.5)
    _pause(attempt)
    attempt.call("set_duty", 0.9)
    before = _size(launcher)
    assert attempt.stands()
    assert _size(launcher) == before
    attempt.call("pause", False)
    _counts(launcher)
