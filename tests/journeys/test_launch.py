"""`sublet launch`: clusters of real tasks on this machine."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standin import Gpu, Machine
from support.queue import rows
from support.sandbox import Sandbox, wait_for

CLUSTERS = Path(__file__).parents[2] / "examples/clusters"
SERVE = """
import json, os, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
role, index = task["type"], task["index"]
host, port = config["cluster"][role][index].split(":")
if (role, index) != ("worker", int(os.environ.get("MISSING", -1))):
    server = socket.create_server((host, int(port)))
print(role, index, "is up", flush=True)

def wait_for_go():
    while not os.path.exists("go"):
        time.sleep(0.05)

wait_for_go()
"""
"""A task that listens where it was told to, without TensorFlow, until there is a file `go`."""


def launched(sandbox: Sandbox, *words: str) -> "subprocess.Popen[str]":
    """A cluster in the foreground, of which all tasks are up."""
    sandbox.write("serve.py", SERVE)
    return sandbox.start("launch", *words, "serve.py")


def tasks(sandbox: Sandbox, name: str = "serve.py") -> dict[str, int]:
    """The processes of the tasks, once all run."""

    def running() -> dict[str, int] | None:
        live = [row for row in all_rows(sandbox) if row["name"].startswith(name)]
        pids = {f"{row['role']} {row['role_index']}": row["pid"] for row in live if row["pid"]}
        return pids if pids and len(pids) == len(live[0]["gang"]) else None

    return wait_for(running, "all tasks run")  # type: ignore[no-any-return]


def all_rows(sandbox: Sandbox) -> list[dict[str, Any]]:
    """The jobs that have not finished."""
    answer = sandbox.sublet("ps", "--json", check=True)
    found = json.loads(answer.stdout)["jobs"]
    return [row for row in found if row["state"] != "finished"]


@pytest.mark.slow
def test_two_workers_train_one_model(sandbox: Sandbox) -> None:
    """Both end with the same weights; the lines of each are told apart, and kept."""
    ran = sandbox.sublet("launch", "--workers", "2", "--stall", "20min",
                         str(CLUSTERS / "mirrored_workers.py"), timeout=None)  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = re.findall(r"^worker ([01]) \| weights (.*)$", ran.stdout, re.MULTILINE)
    assert sorted(found) == [("0", "[1.0, 2.0, 3.0, 4.0]"), ("1", "[1.0, 2.0, 3.0, 4.0]")]
    listed = sandbox.sublet("ps", "mirrored_workers.py").stdout
    number = int(re.search(r"#(\d+)", listed)[1])  # type: ignore[index]
    alone = sandbox.sublet("logs", "--task", "worker:1", str(number)).stdout
    assert "weights [1.0, 2.0, 3.0, 4.0]" in alone
    assert "worker 1 |" not in alone


PARAMETER_SERVER = ("--chief", "1", "--workers", "1", "--ps", "1", "--stall", "20min")
HOLD = """
import os
import time
import tensorflow as tf

cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if cluster.task_type in ("worker", "ps"):
    name, index = cluster.task_type, cluster.task_id
    tf.distribute.Server(cluster.cluster_spec(), job_name=name, task_index=index).join()
strategy = tf.distribute.ParameterServerStrategy(cluster)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    held = [tf.Variable(tf.zeros([20 << 18])) for _ in range(5)]
print("held", sum(float(tf.reduce_sum(one)) for one in held))
while not os.path.exists("go"):
    time.sleep(0.05)
"""
"""Has the parameter server hold 100 MiB, of which the chief makes 20 at a time. They are there when
the chief has read them: TensorFlow does not wait for operations on another task."""


def of_role(sandbox: Sandbox, name: str, role: str) -> dict[str, Any]:
    """The latest finished task of this role."""
    jobs = json.loads(sandbox.sublet("ps", "--all", "--json", check=True).stdout)["jobs"]
    found = [row for row in jobs if row["name"].startswith(name) and row["role"] == role]
    return max(found, key=lambda row: int(row["id"]))


@pytest.mark.slow
def test_a_chief_trains_with_workers_and_a_parameter_server(sandbox: Sandbox) -> None:
    """It is done when the chief is; those that served it are ended, which is no failure."""
    program = str(CLUSTERS / "parameter_server.py")
    ran = sandbox.sublet("launch", *PARAMETER_SERVER, program, timeout=None)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"^chief 0 +\| weights \[", ran.stdout, re.MULTILINE)
    assert "cold" not in ran.stderr
    assert not all_rows(sandbox)
    assert of_role(sandbox, "parameter_server.py", "ps")["peak"] > 0


@pytest.mark.slow
def test_the_lease_of_a_parameter_server_grows_or_is_named(sandbox: Sandbox) -> None:
    """Of a server that gets no memory, its chief hears only that a tensor cannot be parsed."""
    sandbox.write("hold.py", HOLD)
    words = ("launch", *PARAMETER_SERVER, "--memory")
    launched = sandbox.start(*words, "48MiB..1GiB", "hold.py")
    wait_for(
        lambda: all_rows(sandbox) and (of_role(sandbox, "hold.py", "ps")["peak"] or 0) >= 100 << 20,
        "a server that is seen to hold all of it",
    )
    sandbox.write("go", "")
    out, err = launched.communicate()
    assert launched.returncode == 0, out + err
    held = of_role(sandbox, "hold.py", "ps")
    assert held["lease"] >= held["peak"] >= 100 << 20
    ran = sandbox.sublet(*words, "48MiB", "hold.py", timeout=None)
    assert ran.returncode == 1
    assert re.search(r"ps 0 \(#\d+\) failed: out of memory: .*; try --memory", ran.stderr)
    assert re.search(r"chief 0 \(#\d+\) failed first: exit code 1", ran.stderr)


@pytest.mark.slow
def test_workers_have_a_card_each(
    new_sandbox: Callable[..., Sandbox], new_machine: Callable[..., Machine]
) -> None:
    """TensorFlow's own GPU code trains on both, and what each has held is known."""
    cards = [Gpu(uuid=f"GPU-{name}", total=4 << 30, compute=(7, 5)) for name in "ab"]
    machine = new_machine(*cards)
    sandbox = new_sandbox(**machine.environ)
    program = str(CLUSTERS / "mirrored_workers.py")
    words = ("launch", "--workers", "2", "--memory", "256MiB", "--stall", "20min")
    ran = sandbox.sublet(*words, program, timeout=None)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("weights [1.0, 2.0, 3.0, 4.0]") == 2
    jobs = json.loads(sandbox.sublet("ps", "--all", "--json", check=True).stdout)["jobs"]
    assert sorted(row["device"] for row in jobs) == ["gpu0", "gpu1"]
    assert all(0 < row["peak"] < 256 << 20 for row in jobs)
    assert machine.refusals() == []


@pytest.mark.slow
def test_a_task_that_is_killed_is_named_and_ends_the_cluster(sandbox: Sandbox) -> None:
    command = launched(sandbox, "--workers", "2", "--ps", "1")
    os.kill(tasks(sandbox)["worker 1"], signal.SIGKILL)
    out, err = command.communicate()
    assert command.returncode == 128 + signal.SIGKILL
    assert re.search(r"worker 1 \(#\d+\) failed: killed by signal 9; the cluster ends", err)
    assert re.search(r"worker 1 \(#\d+\) failed first: killed by signal 9\n  .*is up", err)
    assert re.search(r"^worker 0 \| worker 0 is up$", out, re.MULTILINE)
    assert not all_rows(sandbox)


@pytest.mark.slow
def test_ctrl_c_ends_all_tasks(sandbox: Sandbox) -> None:
    command = launched(sandbox, "--workers", "2")
    tasks(sandbox)
    command.send_signal(signal.SIGINT)
    command.communicate()
    assert command.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
    assert not all_rows(sandbox)


@pytest.mark.slow
def test_a_task_that_does_not_come_is_named_with_its_stacks(sandbox: Sandbox) -> None:
    sandbox.environ["MISSING"] = "1"
    command = launched(sandbox, "--workers", "2", "--stall", "2s")
    assert command.stderr is not None
    told = next(line for line in command.stderr if "has not opened its port" in line)
    assert re.search(r"worker 1 \(#\d+\) has not opened its port 127.0.0.1:\d+ for 2 s", told)
    assert command.stdout is not None
    assert next(line for line in command.stdout if "in wait_for_go" in line).startswith(
        "worker 1 |"
    )
    sandbox.write("go", "")
    command.communicate()
    assert command.returncode == 0


@pytest.mark.slow
def test_a_program_that_ignores_tf_config_is_told_so(sandbox: Sandbox) -> None:
    sandbox.write("alone.py", "print('hello')")
    ran = sandbox.sublet("launch", "--workers", "2", "alone.py")
    assert ran.returncode == 0
    assert "the program does not use TF_CONFIG" in ran.stderr
    assert sorted(ran.stdout.splitlines()) == ["worker 0 | hello", "worker 1 | hello"]


@pytest.mark.slow
def test_what_is_wrong_with_a_detached_cluster_is_in_ps_and_in_its_logs(sandbox: Sandbox) -> None:
    """Who is missing is named while it is, and afterwards who took no part."""
    sandbox.environ["MISSING"] = "1"
    sandbox.write("serve.py", SERVE)
    words = ("launch", "--workers", "2", "--stall", "1s", "--detach", "--json", "serve.py")
    first, second = json.loads(sandbox.sublet(*words, check=True).stdout)["ids"]

    def found() -> list[str]:
        return [row["reason"] for row in rows(sandbox, first)]

    wait_for(lambda: "has not opened its port" in found()[1], "a finding in ps")
    assert not found()[0]
    listed = " ".join(sandbox.sublet("ps").stdout.split())
    assert f"worker 1 (#{second}) has not opened its port" in listed
    logs = sandbox.sublet("logs", str(first))
    assert re.search(rf"worker 1 \(#{second}\) has not opened its port", logs.stderr)
    wait_for(lambda: "wait_for_go" in sandbox.sublet("logs", str(second)).stdout, "its stacks")
    sandbox.write("go", "")
    assert sandbox.sublet("wait", str(first)).returncode == 0
    assert found()[0] == "done"
    assert "was not seen to open its port" in found()[1]


@pytest.mark.slow
def test_a_detached_cluster_is_waited_for_and_restarted_as_one(sandbox: Sandbox) -> None:
    """Its exit code is that of the task that failed first, after all restarts."""
    sandbox.write(
        "fails.py",
        "import json, os, sys, time\n"
        "if json.loads(os.environ['TF_CONFIG'])['task']['index'] == 1: sys.exit(7)\n"
        "time.sleep(1000)\n",
    )
    answer = sandbox.sublet("launch", "--workers", "2", "--max-restarts", "1", "--detach",
                            "fails.py")  # fmt: skip
    number = int(answer.stdout.split()[0].removeprefix("#"))
    waited = sandbox.sublet("wait", str(number))
    assert waited.returncode == 7
    assert [row["attempt"] for row in rows(sandbox, number, number + 1)] == [2, 2]


@pytest.mark.slow
def test_a_cluster_ends_with_the_command_that_launched_it(sandbox: Sandbox) -> None:
    command = launched(sandbox, "--workers", "2")
    tasks(sandbox)
    numbers = [row["id"] for row in all_rows(sandbox)]
    command.kill()
    command.communicate()
    wait_for(
        lambda: {row["state"] for row in rows(sandbox, *numbers)} == {"finished"},
        "the tasks have ended",
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("train.py",), "A cluster needs a worker or a chief."),
        (("--workers", "0", "train.py"), "A cluster needs a worker or a chief."),
        (("--ps", "1", "--chief", "1", "train.py"), "A parameter server needs workers."),
        (("--master", "1", "train.py"), "No such option"),
        (("--workers", "2", "ls"), "ls is not a Python program."),
        (("--workers", "2", "nothing.py"), "there is no such file"),
        (("--workers", "40", "--memory", "1GiB", "train.py"), "at the same time"),
        (("--workers", "2"), "There is no program to run."),
    ],
)
@pytest.mark.slow
def test_what_is_no_cluster_is_refused_and_changes_nothing(
    sandbox: Sandbox, words: tuple[str, ...], told: str
) -> None:
    sandbox.write("train.py", "")
    ran = sandbox.sublet("launch", *words)
    assert ran.returncode == 2
    assert told in ran.stderr
    assert not all_rows(sandbox)


@pytest.mark.slow
def test_a_tf_config_that_is_set_already_is_refused(sandbox: Sandbox) -> None:
    sandbox.write("train.py", "")
    sandbox.environ["TF_CONFIG"] = '{"cluster": {}}'
    ran = sandbox.sublet("launch", "--workers", "2", "train.py")
    assert ran.returncode == 2
    assert "TF_CONFIG is set" in ran.stderr
