"""A tree is kept on the processors it was given for now, with all its threads, and let go again."""

import contextlib
import os

import pytest

from sublet.keeper import process_tree
from sublet.keeper.scheduling import Affinity
from sublet.policy.opportunistic import WORKS
from support.launcher_harness import LaunchedAttempt, LauncherHarness
from support.sandbox import wait_for

ALL = sorted(os.sched_getaffinity(0))
THREADS = """
import os, subprocess, threading, time
def sleep():
    while True: time.sleep(1)
threading.Thread(target=sleep, daemon=True).start()
subprocess.Popen(['sleep', '1000'], start_new_session=True)
print('up', flush=True)
while not os.path.exists('more'): time.sleep(0.01)
threading.Thread(target=sleep, daemon=True).start()
subprocess.Popen(['sleep', '1000'], start_new_session=True)
print('more', flush=True)
sleep()
"""

pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="a part needs two processors")


def _stands(launched: LaunchedAttempt, where: list[int]) -> bool:
    members = [pid for pid in launched.members() if pid != launched.keeper]
    found = {
        frozenset(os.sched_getaffinity(t)) for pid in members for t in process_tree.threads(pid)
    }
    return found == {frozenset(where)}


def test_a_confined_tree_stays_there_with_all_it_starts_until_it_is_let_go(
    launcher: LauncherHarness,
) -> None:
    """Its keeper, which has to be quick, may run anywhere."""
    launched = launcher.start("1.1", THREADS)
    launched.says("up")
    launched.call("confine", ALL[-1:])
    wait_for(lambda: _stands(launched, ALL[-1:]), "it is confined")
    (launcher.work / "more").touch()
    launched.says("more")
    assert _stands(launched, ALL[-1:])
    assert sorted(os.sched_getaffinity(launched.keeper)) == ALL
    launched.call("confine", ALL)
    wait_for(lambda: _stands(launched, ALL), "it has all of them again")


def test_a_program_that_leaves_its_part_is_put_back(launcher: LauncherHarness) -> None:
    code = (
        "import os, time\n"
        "print('up', flush=True)\n"
        "while not os.path.exists('more'): time.sleep(0.01)\n"
        f"os.sched_setaffinity(0, {ALL})\n"
        "print('left', flush=True)\n"
        "time.sleep(1000)\n"
    )
    launched = launcher.start("1.1", code)
    launched.says("up")
    launched.call("confine", ALL[:1])
    wait_for(lambda: _stands(launched, ALL[:1]), "it is confined")
    (launcher.work / "more").touch()
    launched.says("left")
    wait_for(lambda: _stands(launched, ALL[:1]), "it is back")


def test_a_tree_stays_confined_when_its_keeper_is_killed_and_can_be_let_go(
    launcher: LauncherHarness,
) -> None:
    launched = launcher.start("1.1", THREADS)
    launched.says("up")
    launched.call("confine", ALL[:1])
    wait_for(lambda: _stands(launched, ALL[:1]), "it is confined")
    launched.kill_keeper()
    (launcher.work / "more").touch()
    launched.says("more")
    assert _stands(launched, ALL[:1])
    launched.call("confine", ALL)
    wait_for(lambda: _stands(launched, ALL), "it has all of them again")


def test_a_keeper_tells_how_many_processors_its_tree_keeps_busy(launcher: LauncherHarness) -> None:
    """The work of children that have ended counts, too."""
    code = (
        "import os, subprocess, sys, time\n"
        "while not os.path.exists('go'): time.sleep(0.1)\n"
        "while True: subprocess.run([sys.executable, '-S', '-c', 'pass'])\n"
    )
    launcher.start("1.1", code)
    while launcher.await_report("sampled", "1.1")["busy"] >= WORKS:
        pass
    (launcher.work / "go").touch()
    while launcher.await_report("sampled", "1.1")["busy"] < WORKS:
        pass


def test_what_a_thread_chose_within_its_part_is_left_alone() -> None:
    """On the threads of this very process: they are put back afterwards."""
    me = os.getpid()
    held = Affinity(lambda: [me], ALL)
    try:
        held.confine(ALL[:1])
        assert sorted(os.sched_getaffinity(0)) == ALL[:1]
        held.confine(ALL)
        assert sorted(os.sched_getaffinity(0)) == ALL
        os.sched_setaffinity(0, ALL[-1:])
        held.tick(0.0)
        assert sorted(os.sched_getaffinity(0)) == ALL[-1:]
        held.confine(ALL[:1])
        assert sorted(os.sched_getaffinity(0)) == ALL[:1]
    finally:
        for thread in process_tree.threads(me):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, ALL)


def test_processors_that_are_not_its_own_confine_nothing() -> None:
    held = Affinity(list, ALL)
    held.confine([max(ALL) + 1])
    assert held.part == held.whole
    assert held.due == float("inf")
