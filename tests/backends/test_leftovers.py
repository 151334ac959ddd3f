"""What killed processes have left behind goes when a broker starts, and nothing else does."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sublet.backends.local import leftovers
from sublet.keeper import process_tree
from sublet.keeper.cgroup import Cgroup, all_groups
from support.queue import reached, shell
from support.sandbox import Sandbox, wait_for

ME = {"pid": os.getpid(), "start": process_tree.start_time(os.getpid())}
GONE = {"pid": os.getpid(), "start": 1}
"""A process whose number is another's by now."""


@pytest.mark.parametrize(
    ("name", "record", "stays"),
    [
        ("claim", ME, True),
        ("claim", GONE, False),
        ("claim", {"broker": os.getpid()}, False),
        ("worker.json", ME | {"keeper": GONE}, True),
        ("worker.json", GONE | {"keeper": ME}, True),
        ("worker.json", GONE | {"keeper": GONE}, False),
        ("worker.json", {"pid": "x", "start": None, "keeper": 3}, False),
        ("spec.json", {}, False),
    ],
)
def test_an_attempt_that_no_ledger_knows_stays_as_long_as_somebody_lives_in_it(
    tmp_path: Path, name: str, record: dict[str, Any], stays: bool
) -> None:
    for run in ("7.1", "8.1"):
        (tmp_path / run).mkdir()
        (tmp_path / run / name).write_text(json.dumps(record))
    leftovers.sweep(tmp_path, {"8.1"})
    assert (tmp_path / "7.1").exists() == stays
    assert (tmp_path / "8.1").exists()


def test_groups_of_killed_keepers_go_and_others_stay(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    gone = ended.pid
    names = (
        f"{gone}",
        f"{gone}-17",
        f"{os.getpid()}-1",
        str(ME["pid"]),
        f"{ME['pid']}-{ME['start']}",
    )
    groups = [Cgroup.make(name) for name in names]
    if None in groups:
        pytest.skip("no control group can be made here")
    try:
        leftovers.sweep(tmp_path, set())
        left = {group.path for group in all_groups()}
        assert [group.path in left for group in groups if group] == [False] * 3 + [True] * 2
    finally:
        for group in groups:
            if group is not None:
                group.close()


def test_what_a_killed_broker_has_left_is_gone_with_the_next(
    new_sandbox: Callable[..., Sandbox],
) -> None:
    sandbox = new_sandbox()
    number = shell(sandbox, "sleep 600")
    reached(sandbox, number, "running")
    pid = sandbox.status()["pid"]
    left = sandbox.home / "runs" / "99.1"
    left.mkdir()
    (left / "spec.json").write_text('{"environ": {"API_KEY": "x"}}')
    os.kill(pid, 9)
    wait_for(lambda: pid not in sandbox.processes(), "the broker is gone")
    reached(sandbox, number, "running")
    assert not left.exists()
    assert (sandbox.home / "runs" / "1.1").exists()


def test_a_group_goes_with_the_empty_groups_below_it() -> None:
    """A program may make groups of its own."""
    group = Cgroup.make(f"{os.getpid()}-below")
    if group is None:
        pytest.skip("no control group can be made here")
    os.makedirs(os.path.join(group.path, "sublet-1-1", "deeper"))
    group.close()
    assert not os.path.exists(group.path)
