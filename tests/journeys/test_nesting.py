"""A program under a lease that starts others: their leases come out of its own."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from sublet.keeper import process_tree
from sublet.units import MiB, format_bytes
from support.sandbox import PATIENCE, Sandbox, wait_for

NewSandbox = Callable[..., Sandbox]

POOL = """
import json, os, sys, time
import sublet, sublet.errors

def train(number):
    import tensorflow as tf
    open(f"began-{number}", "w").close()
    names = os.listdir(".")
    at_once = sum(name.startswith("began") for name in names)
    at_once -= sum(name.startswith("done") for name in names)
    tf.zeros([1024, 1024, 8])
    # The first two wait for each other: they do run at the same time.
    while sum(name.startswith("began") for name in os.listdir(".")) < 2: time.sleep(0.02)
    while not os.path.exists("go"): time.sleep(0.02)
    open(f"done-{number}", "w").close()
    return at_once, limit()

def limit():
    # TensorFlow reads it of the environment on a CPU; on a card it is in its configuration.
    leased = json.loads(os.environ["SUBLET_LEASE"])["ceiling"] >> 20
    return os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB", str(leased))

if __name__ == "__main__":
    memory, too_large = sys.argv[1:]
    with sublet.Pool(4, memory) as pool:
        results = pool.map(train, range(4))
        try:
            pool.submit(train, 9, memory=too_large).result()
        except sublet.errors.TooLarge as error:
            print(error, file=sys.stderr)
        print(json.dumps(list(results)), flush=True)
    import tensorflow as tf
    tf.zeros([1])
    print(limit())
"""


def rows(sandbox: Sandbox, running: int) -> list[dict[str, Any]]:
    """The leases, once so many of them are in use."""

    def found() -> list[dict[str, Any]] | None:
        leases = [row for row in sandbox.status()["leases"] if row["state"] == "running"]
        return leases if len(leases) == running else None

    return wait_for(found, f"{running} programs run")  # type: ignore[no-any-return]


class Outer(NamedTuple):
    """A program with a pool that has the whole device."""

    client: "subprocess.Popen[str]"
    lease: int
    worker: int
    """MiB of the lease, and of a worker's: two fit, and beside the lease there is room for none."""


def outer(sandbox: Sandbox) -> Outer:
    """What is left of the device is found out first: a nursery that shares its pages with another
    one on the machine holds less than half of what it holds alone."""
    sandbox.write("pool.py", POOL)
    sandbox.warm()
    beside = 250 if sandbox.device == "cpu" else 1050 + 250
    lease = sandbox.device_row()["free"] // MiB - beside
    worker = lease * 36 // 100
    words = ["pool.py", f"{worker}MiB", f"{lease + 1}MiB"]
    return Outer(sandbox.start("run", "--memory", f"{lease}MiB", *words), lease, worker)


def test_a_pool_in_a_leased_program_runs_within_its_lease(
    new_either_sandbox: Callable[[int, int], Sandbox],
) -> None:
    """Otherwise it would wait for ever for itself."""
    sandbox = new_either_sandbox(2000, 40 * 1024)
    client, lease, worker = outer(sandbox)
    first, *inner = rows(sandbox, 3)
    job = first["job"]
    assert [row["within"] for row in (first, *inner)] == [None, job, job]
    assert sum(row["charge"] for row in inner) <= first["lease"]
    # Two more have asked, once the pool has come to it.
    wait_for(lambda: len(sandbox.status()["waiting"]) == 2, "two wait")
    status = sandbox.status()
    assert sandbox.device_row()["leased"] == first["charge"]
    held = f"{format_bytes(lease * MiB)} that #{job} holds"
    assert all(f"free of the {held}" in row["reason"] for row in status["waiting"])
    assert f"in #{job}" in sandbox.sublet("ps", check=True).stdout
    sandbox.write("go", "")
    out, said = client.communicate(timeout=PATIENCE)
    assert client.returncode == 0, said
    results, left = out.splitlines()
    assert [limit for _, limit in json.loads(results)] == [str(worker)] * 4
    assert max(at_once for at_once, _ in json.loads(results)) == 2
    assert left == str(lease)
    assert f"will never fit on the lease of #{job}" in said
    assert f"give #{job} a larger lease" in said
    assert sandbox.status()["leases"] == []


def test_what_a_killed_program_has_started_goes_with_it(new_sandbox: NewSandbox) -> None:
    """Workers and leases, those that wait too."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="2000MiB")
    client = outer(sandbox).client
    leases = rows(sandbox, 3)
    os.kill(leases[0]["pid"], signal.SIGKILL)
    client.communicate(timeout=PATIENCE)
    assert client.returncode == -signal.SIGKILL
    wait_for(lambda: not sandbox.status()["leases"], "no lease is left")
    wait_for(lambda: not sandbox.status()["waiting"], "nobody waits")
    assert all(process_tree.start_time(row["pid"]) is None for row in leases)


def test_leases_stay_within_each_other_when_the_broker_is_killed(new_sandbox: NewSandbox) -> None:
    """The next one counts them as the last one did, and all comes to its end."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="2000MiB")
    client, lease, _ = outer(sandbox)
    before = rows(sandbox, 3)
    broker = sandbox.status()["pid"]
    os.kill(broker, signal.SIGKILL)
    wait_for(lambda: process_tree.start_time(broker) is None, "the broker is dead")
    after = rows(sandbox, 3)
    assert [(row["job"], row["within"]) for row in after] == [
        (row["job"], row["within"]) for row in before
    ]
    assert sandbox.status()["devices"][0]["leased"] == before[0]["charge"]
    sandbox.write("go", "")
    out, said = client.communicate(timeout=PATIENCE)
    assert client.returncode == 0, said
    assert out.splitlines()[-1] == str(lease)
    jobs = json.loads(sandbox.sublet("ps", "--all", "--json", check=True).stdout)
    assert {row["within"] for row in jobs["jobs"]} >= {None, before[0]["job"]}


def test_a_broker_that_a_leased_program_needs_outlives_it(new_sandbox: NewSandbox) -> None:
    """It is no part of the program's tree, and neither are the workers of others."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="4GiB")
    sandbox.write(
        "needy.py",
        """
import os, signal, sublet
first = sublet.status().pid
os.kill(first, signal.SIGKILL)
while (broker := sublet.status().pid) == first: pass
with open("draft", "w") as file: file.write(f"{os.getpid()} {broker}")
os.rename("draft", "pids")
""",
    )
    sandbox.write("other.py", "import time\nwhile True: time.sleep(0.1)\n")
    sandbox.sublet("submit", "--memory", "64MiB", "other.py", check=True)
    rows(sandbox, 1)
    # Submitted, so that no client of theirs is there to start the next broker.
    sandbox.sublet("submit", "--memory", "64MiB", "needy.py", check=True)
    pids = sandbox.work / "pids"
    wait_for(pids.exists, "the program has a new broker")
    program, broker = map(int, pids.read_text().split())
    wait_for(lambda: process_tree.start_time(program) is None, "the program has ended")
    assert b"SUBLET_LEASE" not in Path(f"/proc/{broker}/environ").read_bytes()
    (lease,) = rows(sandbox, 1)
    assert lease["name"] == "other.py"
    sandbox.warm()
    assert sandbox.status()["pid"] == broker


def test_a_process_that_holds_a_lease_itself_lends_from_it_too(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="3GiB")
    lodge = "import sublet; sublet.lease('1GiB')\nimport"
    sandbox.write("lodger.py", POOL.replace("import sublet,", lodge))
    sandbox.write("go", "")
    done = sandbox.python("lodger.py", "360MiB", "1025MiB")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "1024"
    jobs = json.loads(sandbox.sublet("ps", "--all", "--json", check=True).stdout)
    assert {row["within"] for row in jobs["jobs"]} == {None, 1}
