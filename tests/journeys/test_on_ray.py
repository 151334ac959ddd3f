"""Jobs on a real Ray cluster of three nodes, each with a broker of its own."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from support.ray_cluster import MiB, RayCluster
from support.sandbox import Sandbox, wait_for


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    try:
        yield cluster
    finally:
        cluster.close()


def rows(sandbox: Sandbox, *numbers: int) -> list[dict[str, Any]]:
    """The jobs, as `sublet ps` knows them."""
    words = ["ps", "--json", *map(str, numbers)]
    return json.loads(sandbox.sublet(*words, check=True).stdout)["jobs"]  # type: ignore[no-any-return]


def submit(sandbox: Sandbox, *words: str) -> list[int]:
    ran = sandbox.sublet("submit", "--on", "ray", "--json", *words)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)["ids"]  # type: ignore[no-any-return]


SPEAKS = """
import os, sys, time
print("out", os.environ["SUBLET_HOME"], os.environ["MINE"], sys.argv[1:], flush=True)
print("err", file=sys.stderr, flush=True)
try:
    while "wait" in sys.argv:
        time.sleep(0.05)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
sys.exit(7)
"""


def test_in_the_foreground_a_program_on_a_node_is_as_at_home(cluster: RayCluster) -> None:
    sandbox = cluster.sandbox
    sandbox.environ["MINE"] = "my own"
    sandbox.write("speaks.py", SPEAKS)
    ran = sandbox.sublet("run", "-q", "--on", "ray", "--cold", "speaks.py", "a", "b c")
    assert ran.returncode == 7, ran.stderr
    assert ran.stdout.split()[1] in [str(one.home) for one in cluster.homes.values()]
    assert ran.stdout.endswith("my own ['a', 'b c']\n")
    assert ran.stderr == "err\n"
    program = sandbox.start("run", "-q", "--on", "ray", "--cold", "speaks.py", "wait")
    assert program.stdout is not None
    assert program.stdout.readline().startswith("out")
    program.send_signal(signal.SIGINT)
    out, err = program.communicate()
    assert out == "interrupted\n"
    assert "KeyboardInterrupt" in err
    assert program.returncode != 0


def test_what_no_cluster_or_node_can_give_is_refused_at_once(cluster: RayCluster) -> None:
    sandbox = cluster.sandbox
    sandbox.write("speaks.py", SPEAKS)
    large = sandbox.sublet("run", "--on", "ray", "--memory", "500GiB", "speaks.py")
    assert large.returncode == 2
    assert "500 GiB" in large.stderr
    nowhere = sandbox.sublet("submit", "--on", "127.0.0.1:9", "speaks.py")
    assert nowhere.returncode == 2
    assert "The Ray cluster 127.0.0.1:9 cannot be reached" in nowhere.stderr
    wrong = sandbox.sublet("submit", "--on", "moon", "speaks.py")
    assert "ray://HOST:10001" in wrong.stderr
    hide = "import runpy, sys; sys.modules['ray'] = None; sys.argv[1:] = {!r}"
    hide += "; runpy.run_module('sublet', run_name='__main__')"
    without = sandbox.python("-c", hide.format(["submit", "--on", "127.0.0.1:8", "speaks.py"]))
    assert without.returncode == 2
    assert "--on ray needs the package ray, which is not installed." in without.stderr
    assert "pip install 'sublet[ray]'" in without.stderr


IN_PYTHON = """
import sublet
job = sublet.submit(["speaks.py", "one"], memory="32MiB", cold=True, on="ray")
print(job.wait().code, job.status().device)
report = sublet.run(["speaks.py", "two"], memory="32MiB", cold=True, on="ray")
print(report.code, report.device)
"""


def test_jobs_are_sent_to_a_cluster_from_python_too(cluster: RayCluster) -> None:
    sandbox = cluster.sandbox
    sandbox.environ["MINE"] = "my own"
    sandbox.write("speaks.py", SPEAKS)
    ran = sandbox.python("-c", IN_PYTHON)
    assert ran.returncode == 0, ran.stderr
    submitted, said, run = ran.stdout.splitlines()
    assert submitted.startswith("7 n")
    assert said.endswith("my own ['two']")
    assert run.startswith("7 n")


WHERE = """
import os, helper
print(os.getcwd(), os.path.dirname(__file__), helper.word, open("data/text").read())
"""


def test_files_that_a_node_does_not_have_are_sent(cluster: RayCluster) -> None:
    sandbox = cluster.sandbox.with_work(cluster.sandbox.work / "project")
    script = sandbox.write("where.py", WHERE)
    sandbox.write("helper.py", "word = 'helps'")
    (sandbox.work / "data").mkdir()
    sandbox.write("data/text", "some data")
    done = threading.Event()

    def change() -> None:  # So no node has the file that was there a moment ago.
        while not done.wait(0.001):
            os.utime(script)

    changes = threading.Thread(target=change)
    changes.start()
    try:
        ran = sandbox.sublet("run", "-q", "--on", "ray", "--cold", "where.py")
    finally:
        done.set()
        changes.join()
    assert ran.returncode == 0, ran.stderr
    cwd, beside, rest = ran.stdout.strip().split(" ", 2)
    assert cwd == beside
    assert any(cwd.startswith(f"{one.home}/ray/files/") for one in cluster.homes.values())
    assert rest == "helps some data"
    assert sandbox.sublet("run", "-q", "--on", "ray", "--cold", "where.py").stdout.startswith(
        f"{sandbox.work} "
    )


FILLS = """
import sys
import tensorflow as tf
amounts = [tf.ones([2**20]) for _ in range(int(sys.argv[1]))]
print("held", len(amounts) * 4, "MiB")
"""


def test_the_ceiling_that_was_granted_holds_on_the_node(cluster: RayCluster) -> None:
    sandbox = cluster.sandbox
    sandbox.write("fills.py", FILLS)
    fits = submit(sandbox, "--memory", "128MiB", "--on-oom", "fail", "fills.py", "16")
    too_much = submit(sandbox, "--memory", "128MiB", "--on-oom", "fail", "fills.py", "64")
    sandbox.sublet("wait", *map(str, [*fits, *too_much]))
    good, bad = rows(sandbox, *fits, *too_much)
    assert good["exit"] == 0, sandbox.sublet("logs", str(fits[0])).stdout
    assert sandbox.sublet("logs", str(fits[0])).stdout.endswith("held 64 MiB\n")
    assert bad["cause"] == "lease exceeded"
    for row in (good, bad):
        assert row["device"].endswith("/cpu")
        assert row["lease"] == 128 * MiB
        assert 0 < row["peak"] <= 128 * MiB


WORKS = """
import fcntl, os, sys, time
place, number = sys.argv[1:]
alone = open(f"{place}/{number}.lock", "w")
try:
    fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open(f"{place}/{number}.twice", "w").close()
    raise
with open(f"{place}/{number}.begun", "a") as file:
    file.write(os.environ["SUBLET_HOME"] + "\\n")
line = 0
while not os.path.exists(f"{place}/go"):
    print("line", line, flush=True)
    line += 1
    time.sleep(0.05)
print(line, "lines")
print("work", number, "is done", flush=True)
with open(f"{place}/{number}.done", "a") as file:
    file.write("x")
"""

HISTORY = """
import json
from sublet.client.connection import ask
from sublet.wire.messages import AskUsageHistory, UsageHistory
rows = ask(AskUsageHistory(), UsageHistory).devices["cpu"]
print(json.dumps([sum(one.charge for one in row.holdings) for row in rows]))
"""


def find(sandbox: Sandbox, word: str) -> list[int]:
    """The processes of a home that have this in their command line."""
    return [pid for pid, words in sandbox.processes().items() if word in words]


def end(sandbox: Sandbox, word: str) -> None:
    """Kill the only such process."""
    (pid,) = find(sandbox, word)
    os.kill(pid, signal.SIGKILL)


def test_whatever_is_killed_at_home_no_output_is_lost_and_no_work_done_twice(
    cluster: RayCluster,
) -> None:
    sandbox = cluster.sandbox
    sandbox.write("works.py", WORKS)
    place = sandbox.work / "kills"
    place.mkdir()
    small = ("--cold", "--memory", "32MiB")
    numbers = submit(sandbox, *small, "--array", "1-3", "works.py", str(place), "{index}")
    (retried,) = submit(sandbox, *small, "--retries", "1", "works.py", str(place), "again")
    (running,) = submit(sandbox, *small, "works.py", str(place), "cancelled")
    (waiting,) = submit(sandbox, *small, "--after", str(running), "works.py", str(place), "never")

    def begun() -> int:
        return sum(len(path.read_text().split()) for path in place.glob("*.begun"))

    wait_for(lambda: begun() == 5, "all have begun")
    end(sandbox, "sublet.broker")
    assert {row["state"] for row in rows(sandbox, *numbers)} == {"running"}
    end(sandbox, "sublet.nodes.bridge")
    wait_for(lambda: find(sandbox, "sublet.nodes.bridge"), "another bridge is there")
    end(sandbox, f"runs/{retried}.1")
    sandbox.sublet("cancel", str(running), str(waiting), check=True)
    wait_for(lambda: begun() == 6, "the one without a relay has begun again")
    (place / "go").touch()
    assert sandbox.sublet("wait", *map(str, [*numbers, retried])).returncode == 0
    assert not list(place.glob("*.twice"))
    done = {path.name: path.read_text() for path in place.glob("*.done")}
    assert done == dict.fromkeys(["1.done", "2.done", "3.done", "again.done"], "x")
    for number in numbers:
        *lines, count, last = sandbox.sublet("logs", str(number)).stdout.splitlines()
        assert lines == [f"line {one}" for one in range(len(lines))]
        assert count == f"{len(lines)} lines"
        assert last.endswith("is done")
    cancelled = rows(sandbox, running, waiting)
    assert {row["cause"] for row in cancelled} == {"cancelled"}
    for home in cluster.homes.values():
        assert not find(home, "works.py")


def test_no_node_is_overcommitted_and_the_work_of_a_dead_one_is_done_by_others(
    cluster: RayCluster,
) -> None:
    sandbox, jobs = cluster.sandbox, 12
    sandbox.write("works.py", WORKS)
    place = sandbox.work / "crowd"
    place.mkdir()
    numbers = submit(
        sandbox, "--cold", "--memory", "400MiB total", "--array", f"1-{jobs}", "works.py",
        str(place), "{index}",
    )  # fmt: skip

    def begun() -> list[str]:
        found = [path.read_text().split() for path in place.glob("*.begun")]
        return [words[-1] for words in found if words]  # It may be about to write.

    def on(name: str) -> int:
        return begun().count(str(cluster.homes[name].home))

    full = cluster.memory // (400 * MiB)
    wait_for(lambda: min(map(on, cluster.homes)) >= full - 1, "all nodes are at work")
    lost = on("n2") + on("n3")
    cluster.kill("n3")
    end(cluster.homes["n2"], "ray::Agent")
    away = [cluster.homes["n2"], cluster.homes["n3"]]
    wait_for(lambda: not any(find(one, "works.py") for one in away), "their programs end")
    (place / "go").touch()
    waited = sandbox.sublet("wait", *map(str, numbers))
    assert waited.returncode == 0, waited.stderr
    assert not list(place.glob("*.twice"))
    assert [path.read_text() for path in place.glob("*.done")] == ["x"] * jobs
    ended = rows(sandbox, *numbers)
    assert sum(row["attempt"] > 1 for row in ended) >= lost > 0
    assert {row["device"] for row in ended} == {"n1/cpu", "n2/cpu"}
    for number, row in zip(numbers, ended, strict=True):
        assert row["exit"] == 0
        said = sandbox.sublet("logs", str(number)).stdout
        assert said.count("is done") == 1
    for home in cluster.homes.values():
        history = json.loads(home.python("-c", HISTORY, check=True).stdout)
        assert 0 < max(history) <= cluster.memory
