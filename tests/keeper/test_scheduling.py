"""The class of service reaches every thread of a tree, and those that come later."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sublet.keeper import process_tree, scheduling
from support.launcher_process import Attempt, LauncherProcess
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


def _policies(attempt: Attempt) -> set[int]:
    members = [pid for pid in attempt.members() if pid != attempt.keeper]
    return {
        os.sched_getscheduler(thread) for pid in members for thread in process_tree.threads(pid)
    }


def _weights(attempt: Attempt) -> set[str]:
    members = [pid for pid in attempt.members() if pid != attempt.keeper]
    return {Path(f"/proc/{pid}/autogroup").read_text().split()[-1] for pid in members}


def _has_autogroups() -> bool:
    path = Path("/proc/sys/kernel/sched_autogroup_enabled")
    return path.exists() and path.read_text().strip() == "1"


def _is_low(attempt: Attempt) -> Callable[[], bool]:
    def low() -> bool:
        weights = _weights(attempt) if _has_autogroups() else {"19"}
        return _policies(attempt) == {os.SCHED_IDLE} and weights == {"19"}

    return low


def test_an_opportunistic_program_begins_so_with_all_it_starts(launcher: LauncherProcess) -> None:
    """Its keeper, which has to be quick, is not in that class."""
    attempt = launcher.start("1.1", THREADS, service="opportunistic")
    attempt.says("up")
    assert _policies(attempt) == {os.SCHED_IDLE}
    wait_for(_is_low(attempt), "the sessions it made have a low weight")
    (launcher.work / "more").touch()
    attempt.says("more")
    wait_for(_is_low(attempt), "so have those that came later")
    assert os.sched_getscheduler(attempt.keeper) == os.SCHED_OTHER


def test_a_thread_that_resets_its_class_for_children_does_not_free_them(
    launcher: LauncherProcess,
) -> None:
    code = (
        "import os, time\n"
        "os.sched_setscheduler(0, os.SCHED_IDLE | os.SCHED_RESET_ON_FORK, os.sched_param(0))\n"
        "if os.fork() == 0: time.sleep(1000)\n"
        "print('up', os.sched_getscheduler(0), flush=True)\n"
        "time.sleep(1000)\n"
    )
    attempt = launcher.start("1.1", code, service="opportunistic")
    attempt.says("up")

    def all_idle() -> bool:
        kinds = {policy & ~os.SCHED_RESET_ON_FORK for policy in _policies(attempt)}
        return kinds == {os.SCHED_IDLE} and len(attempt.members()) == 3

    wait_for(all_idle, "the child is idle too")


def test_an_opportunistic_program_stays_so_when_its_keeper_is_killed(
    launcher: LauncherProcess,
) -> None:
    attempt = launcher.start("1.1", THREADS, service="opportunistic")
    attempt.says("up")
    attempt.kill_keeper()
    assert _policies(attempt) == {os.SCHED_IDLE}
    (launcher.work / "more").touch()
    attempt.says("more")
    assert _policies(attempt) == {os.SCHED_IDLE}


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
