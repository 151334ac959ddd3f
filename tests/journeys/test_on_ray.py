"""Jobs on a real Ray cluster of three nodes, each with a broker of its own."""

import json
import signal
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
    hide = "import sys; sys.modules['ray'] = None; sys.argv[1:] = %r; import sublet.__main__"
    words = ["submit", "--on", "127.0.0.1:8", "speaks.py"]
    without = sandbox.python("-c", hide % words)
    assert without.returncode != 0


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
while not os.path.exists(f"{place}/go"):
    time.sleep(0.05)
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


def test_no_node_is_overcommitted_and_the_work_of_a_dead_one_is_done_by_others(
    cluster: RayCluster,
) -> None:
    sandbox, jobs = cluster.sandbox, 24
    sandbox.write("works.py", WORKS)
    place = sandbox.work / "place"
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
    cluster.kill("n3")
    lost = on("n3")
    away = cluster.homes["n3"].processes
    wait_for(lambda: not any("works.py" in one for one in away().values()), "its programs end")
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
