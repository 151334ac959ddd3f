"""Clusters and a broker that is killed: all of the tasks run in the end, or none."""

import random
import signal
import time
from collections.abc import Callable

from sublet.keeper import process_tree
from support.queue import rows
from support.sandbox import Sandbox

COUNT = """
import json, os, socket, time

def all_have(what):
    open(f"{what}-{index}", "w").close()
    while not all(os.path.exists(f"{what}-{other}") for other in range(3)):
        time.sleep(0.02)

config = json.loads(os.environ["TF_CONFIG"])
index = config["task"]["index"]
host, port = config["cluster"]["worker"][index].split(":")
server = socket.create_server((host, int(port)))
all_have("begun")
for peer in config["cluster"]["worker"]:
    socket.create_connection(tuple(peer.split(":"))).close()
all_have("met")
"""
"""A task that ends when all could connect to all others."""


def test_a_broker_that_is_killed_while_a_cluster_starts_leaves_none_half_started(
    new_sandbox: Callable[..., Sandbox],
) -> None:
    """At five moments: the next broker starts what was granted, with the ports of the others."""
    dice = random.Random(5)
    for number in range(5):
        sandbox = new_sandbox(SUBLET_CPU_MEMORY="4GiB")
        sandbox.write("count.py", COUNT)
        sandbox.sublet("status", check=True)
        command = sandbox.start("launch", "--workers", "3", "--cold", "--memory", "64MiB",
                                "--detach", "--json", "count.py")  # fmt: skip
        time.sleep(dice.uniform(0.2, 0.8))  # Any moment will do, and none is waited for.
        brokers = [pid for pid, words in sandbox.processes().items() if "sublet.broker" in words]
        process_tree.send(brokers, signal.SIGKILL)
        out, err = command.communicate()
        assert command.returncode == 0, err
        assert '"ids": [1, 2, 3]' in out
        waited = sandbox.sublet("wait", "1")
        assert waited.returncode == 0, (number, waited.stdout, rows(sandbox, 1))
        assert {row["state"] for row in rows(sandbox, 1)} == {"finished"}
        assert sandbox.status()["leases"] == []
