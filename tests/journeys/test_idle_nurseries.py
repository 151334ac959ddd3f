"""Warm nurseries that nobody uses hold no memory that a program needs."""

import json
from collections.abc import Callable
from typing import Any

from support.sandbox import Sandbox, wait_for

TAKE = "import sys, tensorflow as tf; x = tf.ones([int(sys.argv[1]) << 18]); print(len(x) >> 18)"
COLD = 384
"""MiB that a process is charged which is started cold, as long as none was measured."""
WARM = 128
"""The same for one that is started warm."""
WAIT = (
    "import os, time\nopen('runs', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.02)"
)


def homes(sandbox: Sandbox, count: int) -> list[dict[str, str]]:
    """Environments that need a nursery each."""
    found = []
    for number in range(count):
        home = sandbox.work / f"home-{number}"
        home.mkdir()
        found.append({**sandbox.environ, "HOME": str(home)})
    return found


def nurseries(sandbox: Sandbox) -> dict[int, int]:
    """What each holds, by pid."""
    rows = sandbox.status()["nurseries"]
    return {row["pid"]: row["holds"] for row in rows if row["state"] == "warm"}


def test_idle_nurseries_make_room_for_jobs_and_those_in_use_stay(
    new_sandbox: Callable[..., Sandbox],
) -> None:
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="1500MiB")
    sandbox.write("nothing.py", "")
    mine, *others = homes(sandbox, 3)
    sandbox.write("wait.py", WAIT)
    sandbox.write("take.py", TAKE)
    running = sandbox.start("run", "-q", "--memory", "16MiB", "wait.py", env=mine)
    wait_for((sandbox.work / "runs").exists, "it runs")
    (used,) = nurseries(sandbox)
    for environ in others:
        sandbox.sublet("run", "-q", "--memory", "16MiB", "nothing.py", env=environ, check=True)
    _, second = sorted(set(nurseries(sandbox)) - {used})
    device = sandbox.status()["devices"][0]

    # A cold job needs no nursery. It lacks 16 MiB: the least recently used one gives them.
    asked = f"{(device['free'] >> 20) - COLD + 16}MiB"
    words = ("run", "-q", "--cold", "--memory", asked, "take.py", "8")
    answer: Any = sandbox.sublet(*words)
    assert (answer.returncode, answer.stdout) == (0, "8\n"), answer.stderr
    assert set(nurseries(sandbox)) == {used, second}

    (sandbox.work / "go").touch()
    running.communicate()
    assert running.returncode == 0
    # Most of the device, and nothing runs: no nursery is a reason to call it too large.
    answer = sandbox.sublet("run", "-q", "--cold", "--memory", "900MiB", "take.py", "9")
    assert (answer.returncode, answer.stdout) == (0, "9\n"), answer.stderr


def test_a_program_that_needs_more_gets_what_idle_nurseries_hold(
    new_sandbox: Callable[..., Sandbox],
) -> None:
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="1000MiB")
    sandbox.write("nothing.py", "")
    sandbox.write("take.py", TAKE)
    mine, *others = homes(sandbox, 3)
    for environ in others:
        sandbox.sublet("run", "-q", "--memory", "16MiB", "nothing.py", env=environ, check=True)
    idle = nurseries(sandbox)
    needs = str(1000 - (max(idle.values()) >> 20) - 128 - 150)
    answer = sandbox.sublet("run", "-q", "--memory", "grow", "take.py", needs, env=mine)
    assert (answer.returncode, answer.stdout) == (0, f"{needs}\n"), answer.stderr
    assert set(idle) - set(nurseries(sandbox))


def test_no_nursery_is_loaded_where_there_is_no_room_for_it(
    new_sandbox: Callable[..., Sandbox],
) -> None:
    """Its program waits for the others as if it were started cold, and is started warm when there
    is room for both."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="900MiB")
    sandbox.write("nothing.py", "")
    sandbox.write("wait.py", WAIT)
    mine, other = homes(sandbox, 2)
    sandbox.sublet("run", "-q", "--memory", "16MiB", "nothing.py", env=mine, check=True)
    ((used, holds),) = nurseries(sandbox).items()
    asked = (sandbox.status()["devices"][0]["free"] - holds // 2 >> 20) - WARM
    running = sandbox.start("run", "-q", "--memory", f"{asked}MiB", "wait.py", env=mine)
    wait_for((sandbox.work / "runs").exists, "it runs")
    assert sandbox.status()["devices"][0]["free"] < holds

    waiting = sandbox.start("run", "--report", "r.json", "nothing.py", env=other)
    wait_for(lambda: sandbox.status()["waits"] == 1, "the second waits")
    now = sandbox.status()
    assert [row["pid"] for row in now["nurseries"]] == [used]
    assert "for its process on cpu" in now["waiting"][0]["reason"]

    (sandbox.work / "go").touch()
    for program in (running, waiting):
        _, err = program.communicate()
        assert program.returncode == 0, err
    assert json.loads((sandbox.work / "r.json").read_text())["how"] == "warm"
