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
from support.launcher_harness import LaunchedAttempt, LauncherHarness
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


def _size(launcher: LauncherHarness) -> int:
    path = launcher.work / "count"
    return path.stat().st_size if path.exists() else 0


def _counts(launcher: LauncherHarness) -> None:
    before = _size(launcher)
    wait_for(lambda: _size(launcher) > before, "it counts on")


def _pause(launched: LaunchedAttempt) -> None:
    """One that stands because its share of the time is over is not paused yet: that is written down
    first."""
    launched.call("pause", True)
    wait_for(lambda: _paused(launched) and launched.stands(), "it stands")


def _paused(launched: LaunchedAttempt) -> bool:
    return bool((attempt_files.read(launched.directory, "runtime.json") or {}).get("paused"))


@pytest.fixture(params=["group", "signals"])
def any_launcher(launcher: LauncherHarness, request: pytest.FixtureRequest) -> LauncherHarness:
    """With a control group where the machine has one, and always without one."""
    if request.param == "signals":
        launcher.fire()
        os.environ["SUBLET_NO_CGROUP"] = "1"
        try:
            launcher.hire()
        finally:
            del os.environ["SUBLET_NO_CGROUP"]
    return launcher


def test_a_paused_program_stands_and_goes_on_where_it_was(any_launcher: LauncherHarness) -> None:
    launched = any_launcher.start("1.1", COUNT)
    _counts(any_launcher)
    _pause(launched)
    before = _size(any_launcher)
    assert launched.stands()
    assert _size(any_launcher) == before
    launched.call("pause", False)
    _counts(any_launcher)
    assert launched.members()


def test_a_tree_that_forks_meanwhile_does_not_escape(any_launcher: LauncherHarness) -> None:
    """Neither do children that have left for a session of their own."""
    launched = any_launcher.start("1.1", FORK)
    wait_for(lambda: len(launched.members()) > 20, "it has forked a lot")
    _pause(launched)

    def rests() -> bool:
        before = (_size(any_launcher), sorted(launched.members()))
        time.sleep(0.1)
        return (_size(any_launcher), sorted(launched.members())) == before

    # What we look at may be forked behind our back, as it may behind the keeper's.
    wait_for(rests, "nothing of it writes or forks any more")
    launched.call("pause", False)
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
    any_launcher: LauncherHarness,
) -> None:
    code = (
        "import subprocess, os, signal, time\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "os.kill(child.pid, signal.SIGSTOP)\n"
        "print('child', child.pid, '.', flush=True)\n" + COUNT
    )
    launched = any_launcher.start("1.1", code)
    launched.says("up")
    child = int(launched.log.read_text().split()[1])
    _pause(launched)
    launched.call("pause", False)
    _counts(any_launcher)
    assert Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_paused_program_can_be_stopped_and_still_saves(any_launcher: LauncherHarness) -> None:
    """It is woken to hear SIGTERM, and the reason comes through as given."""
    code = (
        "import signal, sys\n"
        "def save(*_): print('saved', flush=True); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, save)\n" + COUNT
    )
    launched = any_launcher.start("1.1", code)
    launched.says("up")
    _pause(launched)
    launched.call("stop", "preempted", 60.0)
    ending = launched.ended()
    assert (os.waitstatus_to_exitcode(ending["status"]), ending["stopped"]) == (3, "preempted")
    assert b"saved" in launched.log.read_bytes()


def test_a_pause_outlives_the_broker_and_a_later_one_can_end_it(
    any_launcher: LauncherHarness,
) -> None:
    launched = any_launcher.start("1.1", COUNT)
    _counts(any_launcher)
    _pause(launched)
    any_launcher.fire()
    any_launcher.hire()
    any_launcher.call("adopt", "1.1")
    any_launcher.await_report("started", "1.1")
    assert launched.stands()
    launched.call("pause", False)
    _counts(any_launcher)


def test_a_pause_outlives_its_keeper_and_the_program_does_too(
    any_launcher: LauncherHarness,
) -> None:
    """The kernel would hang up on it; the broker takes over, and it ends when it is asked to."""
    launched = any_launcher.start("1.1", COUNT)
    _counts(any_launcher)
    _pause(launched)
    launched.kill_keeper()
    wait_for(launched.stands, "it stands again")
    launched.call("pause", False)
    _counts(any_launcher)
    launched.call("pause", True)
    wait_for(launched.stands, "it stands once more")
    launched.call("stop", "cancelled", 60.0)
    ending = launched.ended()
    assert (os.WTERMSIG(ending["status"]), ending["stopped"]) == (signal.SIGTERM, "cancelled")


def test_in_turns_a_program_stands_and_runs_until_they_are_over(launcher: LauncherHarness) -> None:
    launched = launcher.start("1.1", COUNT)
    launched.call("set_duty", 0.2)
    for _ in range(3):
        wait_for(launched.stands, "it stands")
        _counts(launcher)
    launched.call("set_duty", 1.0)
    wait_for(lambda: not launched.stands(), "it runs")
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
    launcher: LauncherHarness, broker: str
) -> None:
    """The kernel wakes the worker even if nobody is left; a broker wakes the rest."""
    launched = launcher.start("1.1", COUNT)
    _counts(launcher)
    launched.call("set_duty", 0.01)
    wait_for(launched.stands, "it stands")
    if broker == "dies first":
        launcher.fire()
    wait_for(launched.stands, "it stands")
    launched.kill_keeper()
    _counts(launcher)
    _counts(launcher)


def test_turns_and_pause_together_are_a_pause(launcher: LauncherHarness) -> None:
    launched = launcher.start("1.1", COUNT)
    _counts(launcher)
    launched.call("set_duty", 0.5)
    _pause(launched)
    launched.call("set_duty", 0.9)
    before = _size(launcher)
    assert launched.stands()
    assert _size(launcher) == before
    launched.call("pause", False)
    _counts(launcher)
