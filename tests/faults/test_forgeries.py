"""A program that writes records of its own into its attempt's directory."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from sublet.formats import attempt_files
from sublet.keeper import process_tree
from support.sandbox import PATIENCE, Sandbox, wait_for

NewSandbox = Callable[..., Sandbox]

FORGES = """
import json, os, sys, time
place = json.loads(os.environ["SUBLET_LEASE"])["dir"]
with open(os.path.join(place, "exit.json"), "w") as file: file.write(sys.argv[1])
open("forged", "w").close()
while not os.path.exists("go"): time.sleep(0.02)
sys.exit(7)
"""


@pytest.mark.parametrize("record", ['{"foo": 1}', '{"status": 0}', "no record"])
def test_a_forged_exit_record_neither_bricks_the_home_nor_ends_a_lease(
    new_sandbox: NewSandbox, record: str
) -> None:
    sandbox = new_sandbox()
    sandbox.write("forges.py", FORGES)
    client = sandbox.start("run", "--cold", "forges.py", record)
    wait_for((sandbox.work / "forged").exists, "it has forged its record")
    client.send_signal(signal.SIGSTOP)  # So that it starts no broker meanwhile.
    before = sandbox.status()
    process_tree.send([before["pid"]], signal.SIGKILL)
    wait_for(lambda: process_tree.start_time(before["pid"]) is None, "the broker is dead")
    sound = sandbox.sublet("recover", check=True)
    assert "the job database is sound" in sound.stdout
    after = sandbox.status()
    assert [row["pid"] for row in after["leases"]] == [row["pid"] for row in before["leases"]]
    client.send_signal(signal.SIGCONT)
    sandbox.write("go", "")
    _, said = client.communicate(timeout=PATIENCE)
    assert client.returncode == 7, said
    assert sandbox.status()["leases"] == []


def test_a_job_that_ended_well_is_not_done_again_when_nobody_is_left_who_saw_it(
    new_sandbox: NewSandbox,
) -> None:
    """Broker, keeper and witness are killed, and the program ends after them."""
    sandbox = new_sandbox()
    script = "echo x >> began; while [ ! -e go ]; do sleep 0.02; done; echo x >> ended"
    sandbox.sublet("submit", "--memory", "64MiB", "sh", "-c", script, check=True)
    wait_for((sandbox.work / "began").exists, "it has begun")
    status = sandbox.status()
    (lease,) = status["leases"]
    kept = attempt_files.read(str(sandbox.home / "runs" / "1.1"), "worker.json")
    assert kept is not None
    process_tree.send(
        [status["pid"], kept["witness"]["pid"], kept["keeper"]["pid"]], signal.SIGKILL
    )
    sandbox.write("go", "")
    wait_for(lambda: process_tree.start_time(lease["pid"]) is None, "the program has ended")
    waited = sandbox.sublet("wait", "--json", "1")
    assert '"lost"' in waited.stdout
    assert "it may have done its work" in waited.stdout
    assert Path(sandbox.work / "began").read_text() == "x\n"
