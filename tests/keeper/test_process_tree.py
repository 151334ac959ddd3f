"""What a program leaves behind or lets loose is held."""

import os
import signal
from pathlib import Path

import pytest

from sublet.keeper.cgroup import Cgroup
from support.launcher_harness import LauncherHarness
from support.sandbox import wait_for


def test_a_program_that_exits_0_with_living_children_takes_them_along(
    launcher: LauncherHarness,
) -> None:
    """Its own exit code stands."""
    code = (
        "import subprocess\n"
        "subprocess.Popen(['sleep', '1000'])\n"
        "subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    )
    launched = launcher.start("1.1", code)
    ending = launched.ended()
    assert (ending["status"], ending["stopped"]) == (0, "")
    wait_for(lambda: not launched.members(), "its tree is gone")


def test_a_program_that_ignores_sigterm_and_forks_away_is_killed(launcher: LauncherHarness) -> None:
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        "print('up', flush=True)\n"
        "time.sleep(1000)\n"
    )
    launched = launcher.start("1.1", code)
    launched.says("up")
    launched.call("stop", "preempted", 0.2)
    ending = launched.ended()
    assert (os.WTERMSIG(ending["status"]), ending["stopped"]) == (signal.SIGKILL, "preempted")
    wait_for(lambda: not launched.members(), "its tree is gone")


def test_a_keeper_killed_while_it_ends_a_tree_does_not_save_it(launcher: LauncherHarness) -> None:
    """The broker ends what ignores SIGTERM, and the reason stays."""
    code = (
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('heard', flush=True))\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(1)\n"
    )
    launched = launcher.start("1.1", code)
    launched.says("up")
    launched.call("stop", "cancelled", 8.0)
    launched.says("heard")
    launched.kill_keeper()
    ending = launched.ended()
    assert (os.WTERMSIG(ending["status"]), ending["stopped"]) == (signal.SIGKILL, "cancelled")


def test_a_keeper_that_is_told_to_end_takes_its_tree_along(launcher: LauncherHarness) -> None:
    launched = launcher.start("1.1", "import time; print('up', flush=True); time.sleep(1000)")
    launched.says("up")
    os.kill(launched.keeper, signal.SIGTERM)
    ending = launched.ended()
    assert (os.WTERMSIG(ending["status"]), ending["stopped"]) == (
        signal.SIGTERM,
        "its keeper was told to",
    )
    # It has reported that, and ends itself a moment later.
    assert set(launched.members()) <= {launched.keeper}
    wait_for(lambda: not launched.members(), "the keeper has gone too")


def test_no_control_group_stays_behind(launcher: LauncherHarness) -> None:
    """Neither of a tree that ended, nor of one whose keeper was killed."""
    launched = launcher.start("1.1", "import time; time.sleep(1000)")
    group = Cgroup.make("probe-of-a-test")
    if group is None:
        pytest.skip("this user may make no control group (version 2)")
    base = Path(group.path).parent
    group.close()
    assert list(base.glob(f"sublet-{launched.keeper}-*"))
    other = launcher.start("2.1", "")
    other.ended()
    launched.kill_keeper()
    launched.call("stop", "cancelled", 1.0)
    launched.ended()
    for keeper in (launched.keeper, other.keeper):
        wait_for(lambda: not list(base.glob(f"sublet-{keeper}-*")), "the groups have gone")  # noqa: B023


def test_a_fork_bomb_is_held_where_a_control_group_can(launcher: LauncherHarness) -> None:
    group = Cgroup.make("probe-of-a-test")
    if group is None:
        pytest.skip("this user may make no control group (version 2)")
    holds = group.limit_pids(50)
    group.close()
    if not holds:
        pytest.skip("the pids controller is not in our control group (version 2)")
    code = (
        "import os, sys, time\n"
        "for _ in range(1000):\n"
        "    try:\n"
        "        if os.fork() == 0: time.sleep(1000)\n"
        "    except BlockingIOError: print('held', flush=True); sys.exit(9)\n"
    )
    launched = launcher.start("1.1", code, pids=50)
    assert os.waitstatus_to_exitcode(launched.ended()["status"]) == 9


def test_the_bound_on_processes_is_written_where_the_kernel_reads_it(tmp_path: Path) -> None:
    """A directory in place of a group: the file is there, or it is not."""
    group = Cgroup(str(tmp_path))
    assert not group.limit_pids(50)
    (tmp_path / "pids.max").write_text("max")
    assert group.limit_pids(50)
    assert (tmp_path / "pids.max").read_text().startswith("50")
