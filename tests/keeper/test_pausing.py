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
from support.sandbox import wait_for
from support.workshop import Shift, Workshop

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


def _size(shop: Workshop) -> int:
    path = shop.work / "count"
    return path.stat().st_size if path.exists() else 0


def _counts(shop: Workshop) -> None:
    before = _size(shop)
    wait_for(lambda: _size(shop) > before, "it counts on")


def _pause(shift: Shift) -> None:
    """One that stands because its share of the time is over is not paused yet: that is written down
    first."""
    shift.call("pause", True)
    wait_for(lambda: _paused(shift) and shift.stands(), "it stands")


def _paused(shift: Shift) -> bool:
    return bool((attempt_files.read(shift.directory, "runtime.json") or {}).get("paused"))


@pytest.fixture(params=["group", "signals"])
def any_shop(shop: Workshop, request: pytest.FixtureRequest) -> Workshop:
    """With a control group where the machine has one, and always without one."""
    if request.param == "signals":
        shop.fire()
        os.environ["SUBLET_NO_CGROUP"] = "1"
        try:
            shop.hire()
        finally:
            del os.environ["SUBLET_NO_CGROUP"]
    return shop


def test_a_paused_program_stands_and_goes_on_where_it_was(any_shop: Workshop) -> None:
    shift = any_shop.start("1.1", COUNT)
    _counts(any_shop)
    _pause(shift)
    before = _size(any_shop)
    assert shift.stands()
    assert _size(any_shop) == before
    shift.call("pause", False)
    _counts(any_shop)
    assert shift.members()


def test_a_tree_that_forks_meanwhile_does_not_escape(any_shop: Workshop) -> None:
    """Neither do children that have left for a session of their own."""
    shift = any_shop.start("1.1", FORK)
    wait_for(lambda: len(shift.members()) > 20, "it has forked a lot")
    _pause(shift)

    def rests() -> bool:
        before = (_size(any_shop), sorted(shift.members()))
        time.sleep(0.1)
        return (_size(any_shop), sorted(shift.members())) == before

    # What we look at may be forked behind our back, as it may behind the keeper's.
    wait_for(rests, "nothing of it writes or forks any more")
    shift.call("pause", False)
    _counts(any_shop)


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


def test_what_others_have_stopped_stays_stopped_after_a_pause(any_shop: Workshop) -> None:
    code = (
        "import subprocess, os, signal, time\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "os.kill(child.pid, signal.SIGSTOP)\n"
        "print('child', child.pid, '.', flush=True)\n" + COUNT
    )
    shift = any_shop.start("1.1", code)
    shift.says("up")
    child = int(shift.log.read_text().split()[1])
    _pause(shift)
    shift.call("pause", False)
    _counts(any_shop)
    assert Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_paused_program_can_be_stopped_and_still_saves(any_shop: Workshop) -> None:
    """It is woken to hear SIGTERM, and the reason comes through as given."""
    code = (
        "import signal, sys\n"
        "def save(*_): print('saved', flush=True); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, save)\n" + COUNT
    )
    shift = any_shop.start("1.1", code)
    shift.says("up")
    _pause(shift)
    shift.call("stop", "preempted", 60.0)
    told = shift.ended()
    assert (os.waitstatus_to_exitcode(told["status"]), told["stopped"]) == (3, "preempted")
    assert b"saved" in shift.log.read_bytes()


def test_a_pause_outlives_the_broker_and_a_later_one_can_end_it(any_shop: Workshop) -> None:
    shift = any_shop.start("1.1", COUNT)
    _counts(any_shop)
    _pause(shift)
    any_shop.fire()
    any_shop.hire()
    any_shop.call("adopt", "1.1")
    any_shop.await_report("started", "1.1")
    assert shift.stands()
    shift.call("pause", False)
    _counts(any_shop)


def test_a_pause_outlives_its_keeper_and_the_program_does_too(any_shop: Workshop) -> None:
    """The kernel would hang up on it; the broker takes over, and it ends only when it is told."""
    shift = any_shop.start("1.1", COUNT)
    _counts(any_shop)
    _pause(shift)
    shift.kill_keeper()
    wait_for(shift.stands, "it stands again")
    shift.call("pause", False)
    _counts(any_shop)
    shift.call("pause", True)
    wait_for(shift.stands, "it stands once more")
    shift.call("stop", "cancelled", 60.0)
    told = shift.ended()
    assert (os.WTERMSIG(told["status"]), told["stopped"]) == (signal.SIGTERM, "cancelled")


def test_in_turns_a_program_stands_and_runs_until_they_are_over(shop: Workshop) -> None:
    shift = shop.start("1.1", COUNT)
    shift.call("set_duty", 0.2)
    for _ in range(3):
        wait_for(shift.stands, "it stands")
        _counts(shop)
    shift.call("set_duty", 1.0)
    wait_for(lambda: not shift.stands(), "it runs")
    _counts(shop)


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
def test_a_keeper_killed_between_turns_leaves_nothing_stopped(shop: Workshop, broker: str) -> None:
    """The kernel wakes the worker even if nobody is left; a broker wakes the rest."""
    shift = shop.start("1.1", COUNT)
    _counts(shop)
    shift.call("set_duty", 0.01)
    wait_for(shift.stands, "it stands")
    if broker == "dies first":
        shop.fire()
    wait_for(shift.stands, "it stands")
    shift.kill_keeper()
    _counts(shop)
    _counts(shop)


def test_turns_and_pause_together_are_a_pause(shop: Workshop) -> None:
    shift = shop.start("1.1", COUNT)
    _counts(shop)
    shift.call("set_duty", 0.5)
    _pause(shift)
    shift.call("set_duty", 0.9)
    before = _size(shop)
    assert shift.stands()
    assert _size(shop) == before
    shift.call("pause", False)
    _counts(shop)
