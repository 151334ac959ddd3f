"""The class of service reaches every thread of a tree, and those that come later."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sublet.keeper import process_tree, scheduling
from support.launcher_harness import LaunchedAttempt, LauncherHarness
from support.sandbox import wait_for

THREADS = """
import os, subprocess, threading, time
def sleep():
    while True: time.sleep(1)
for _ in range(3): threading.Thread(target=sleep, daemon=True).start()
subprocess.Popen(['sleep', '1000'])
subprocess.Popen(['sleep', '1000'], start_new_session=True)
print('up', flush=True)
while not os.path.exists('more'): time.sleep(0.01)
subprocess.Popen(['sleep', '1000'], start_new_session=True)
threading.Thread(target=sleep, daemon=True).start()
print('more', flush=True)
sleep()
"""


def _policies(launched: LaunchedAttempt) -> set[int]:
    members = [pid for pid in launched.members() if pid != launched.keeper]
    return {
        os.sched_getscheduler(thread) for pid in members for thread in process_tree.threads(pid)
    }


def _weights(launched: LaunchedAttempt) -> set[str]:
    members = [pid for pid in launched.members() if pid != launched.keeper]
    return {Path(f"/proc/{pid}/autogroup").read_text().split()[-1] for pid in members}


def _has_autogroups() -> bool:
    path = Path("/proc/sys/kernel/sched_autogroup_enabled")
    return path.exists() and path.read_text().strip() == "1"


def _is_low(launched: LaunchedAttempt) -> Callable[[], bool]:
    def low() -> bool:
        weights = _weights(launched) if _has_autogroups() else {"19"}
        return _policies(launched) == {os.SCHED_IDLE} and weights == {"19"}

    return low


def test_an_opportunistic_program_begins_so_with_all_it_starts(launcher: LauncherHarness) -> None:
    """Its keeper, which has to be quick, is not in that class."""
    launched = launcher.start("1.1", THREADS, service="opportunistic")
    launched.says("up")
    assert _policies(launched) == {os.SCHED_IDLE}
    wait_for(_is_low(launched), "the sessions it made have a low weight")
    (launcher.work / "more").touch()
    launched.says("more")
    wait_for(_is_low(launched), "so have those that came later")
    assert os.sched_getscheduler(launched.keeper) == os.SCHED_OTHER


def test_a_thread_that_resets_its_class_for_children_does_not_free_them(
    launcher: LauncherHarness,
) -> None:
    code = (
        "import os, time\n"
        "os.sched_setscheduler(0, os.SCHED_IDLE | os.SCHED_RESET_ON_FORK, os.sched_param(0))\n"
        "if os.fork() == 0: time.sleep(1000)\n"
        "print('up', os.sched_getscheduler(0), flush=True)\n"
        "time.sleep(1000)\n"
    )
    launched = launcher.start("1.1", code, service="opportunistic")
    launched.says("up")

    def all_idle() -> bool:
        kinds = {policy & ~os.SCHED_RESET_ON_FORK for policy in _policies(launched)}
        return kinds == {os.SCHED_IDLE} and len(launched.members()) == 3

    wait_for(all_idle, "the child is idle too")


def test_an_opportunistic_program_stays_so_when_its_keeper_is_killed(
    launcher: LauncherHarness,
) -> None:
    launched = launcher.start("1.1", THREADS, service="opportunistic")
    launched.says("up")
    launched.kill_keeper()
    assert _policies(launched) == {os.SCHED_IDLE}
    (launcher.work / "more").touch()
    launched.says("more")
    assert _policies(launched) == {os.SCHED_IDLE}


def test_where_the_idle_class_is_refused_nice_takes_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As for a user who may not use SCHED_IDLE: on a thread of our own that ends here."""

    def refuse(*_: object) -> None:
        raise PermissionError

    found: list[int] = []

    def body() -> None:
        me = threading.get_native_id()
        monkeypatch.setattr(scheduling, "_lower_autogroup", lambda _: True)
        monkeypatch.setattr(process_tree, "threads", lambda _: [me])
        monkeypatch.setattr(os, "sched_setscheduler", refuse)
        scheduling.SchedulingClass(lambda: [1], scheduling.OPPORTUNISTIC).tick(0.0)
        found.append(os.getpriority(os.PRIO_PROCESS, me))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert found == [19]
