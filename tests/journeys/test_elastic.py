"""Leases that grow while their programs run, as a user would see it."""

import json
import os
import signal
from collections.abc import Callable
from typing import Any

from standin import Gpu, Machine
from support.sandbox import Sandbox, wait_for

NewSandbox = Callable[..., Sandbox]
NewEitherSandbox = Callable[[int, int], Sandbox]

TAKE = """
import os, sys, time
import tensorflow as tf

kept = []
for word in sys.argv[1:]:
    if word.isdigit():
        kept.append(tf.ones([int(word) << 18]))
    else:
        while not os.path.exists(word): time.sleep(0.02)
print(sum(len(one) for one in kept) >> 18)
"""


def run(sandbox: Sandbox, *words: str) -> dict[str, Any]:
    sandbox.write("take.py", TAKE)
    sandbox.sublet("run", "-q", "--report", "report.json", *words, check=True)
    return json.loads((sandbox.work / "report.json").read_text())  # type: ignore[no-any-return]


def row(sandbox: Sandbox, number: int) -> dict[str, Any] | None:
    found = [one for one in sandbox.status()["leases"] if one["job"] == number]
    return found[0] if found else None


def test_a_program_that_needs_more_than_was_learned_grows_and_says_so(
    either_sandbox: Sandbox,
) -> None:
    """As a training with more data, or an edited script: the device has room, so it lives."""
    sandbox = either_sandbox
    sandbox.write("take.py", TAKE)
    run(sandbox, "take.py", "20")
    learned = run(sandbox, "take.py", "20")
    assert learned["lease"] < 200 << 20
    # Other arguments are another program to what was learned; an edited one is not.
    sandbox.write("take.py", TAKE.replace("int(word) << 18", "int(word) << 23"))
    answer = sandbox.sublet("run", "--memory", "64MiB..3GiB", "take.py", "20", check=True)
    assert answer.stdout == "640\n"
    assert "sublet: lease 64.0 MiB, grew to " in answer.stderr


def test_a_first_run_may_need_more_than_the_default(either_sandbox: Sandbox) -> None:
    sandbox = either_sandbox
    sandbox.write("large.py", TAKE)
    answer = sandbox.sublet("run", "large.py", "1500", "200", check=True)
    assert answer.stdout == "1700\n"
    assert "lease 1.0 GiB, grew to " in answer.stderr


def test_grow_begins_small_and_has_what_it_needs(either_sandbox: Sandbox) -> None:
    sandbox = either_sandbox
    sandbox.write("small.py", TAKE)
    report = run(sandbox, "--memory", "grow", "small.py", "100", "300")
    assert 400 << 20 <= report["peak"] <= report["lease"] < 1 << 30


GRAPHS = {
    "session": """
import tensorflow.compat.v1 as tf
with tf.Graph().as_default():
    large = tf.get_variable("large", [200, 1 << 18], use_resource=False)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
""",
    "function": """
import tensorflow as tf
@tf.function
def build():
    pieces = tf.TensorArray(tf.float32, 200)
    for number in tf.range(200):
        pieces = pieces.write(number, tf.ones([1 << 18]))
    return pieces.stack()
build()
""",
    "checkpoint": """
import tensorflow as tf
tf.train.load_checkpoint("kept").get_tensor("large/.ATTRIBUTES/VARIABLE_VALUE")
tf.function(lambda: tf.random.uniform([200, 1 << 18]))()
""",
}


def test_a_program_that_begins_with_a_graph_or_a_checkpoint_grows_too(sandbox: Sandbox) -> None:
    """These take memory before the runtime starts, and must not take it beside the pool: what wakes
    an allocation that waits would be there, too."""
    keep = "import tensorflow as tf; tf.train.Checkpoint(large=tf.Variable([1.0])).write('kept')"
    sandbox.write("keep.py", keep)
    sandbox.sublet("run", "-q", "keep.py", check=True)
    clients = {}
    for name, text in GRAPHS.items():
        sandbox.write(f"{name}.py", text)
        words = ("--memory", "64MiB..2GiB", "--report", f"{name}.json", f"{name}.py")
        clients[name] = sandbox.start("run", "-q", *words)
    for name, client in clients.items():
        _, err = client.communicate()
        assert client.returncode == 0, err
        report = json.loads((sandbox.work / f"{name}.json").read_text())
        assert report["lease"] >= report["peak"] >= 200 << 20


def test_a_size_that_the_user_has_said_stays_hard(either_sandbox: Sandbox) -> None:
    sandbox = either_sandbox
    sandbox.write("take.py", TAKE)
    answer = sandbox.sublet("run", "--memory", "128MiB", "take.py", "200")
    assert answer.returncode == 1
    assert f"lease  128 MiB on {sandbox.device} (as asked)" in answer.stderr


def test_the_wait_for_room_is_said_and_whoever_ends_in_time_saves_the_program(
    new_either_sandbox: NewEitherSandbox,
) -> None:
    sandbox = new_either_sandbox(2048, 3800)
    sandbox.write("take.py", TAKE)
    other = sandbox.start("run", "-q", "--memory", "1400MiB", "take.py", "10", "go")
    wait_for(lambda: sandbox.status()["leases"], "the other runs")
    client = sandbox.start("run", "--memory", "64MiB..1GiB", "take.py", "10", "begin", "500")
    wait_for(lambda: (found := row(sandbox, 2)) and found["peak"], "it has begun")
    sandbox.write("begin", "")
    assert client.stderr is not None
    said = client.stderr.readline()
    while "needs more than its lease" not in said:
        assert said, "it has not waited"
        said = client.stderr.readline()
    assert "held by #1 take.py" in said
    sandbox.write("go", "")
    out, _ = client.communicate()
    assert (client.returncode, out) == (0, "510\n")
    other.communicate()


def test_without_room_it_runs_out_of_memory_as_ever(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="2GiB")
    sandbox.write("take.py", TAKE)
    other = sandbox.start("run", "-q", "--memory", "1400MiB", "take.py", "10", "go")
    wait_for(lambda: sandbox.status()["leases"], "the other runs")
    answer = sandbox.sublet("run", "--memory", "64MiB..1GiB", "take.py", "10", "900")
    assert answer.returncode == 1
    assert "the program needed more memory than its lease" in answer.stderr
    assert "others #1 take.py" in answer.stderr
    sandbox.write("go", "")
    other.communicate()
    assert other.returncode == 0


def test_two_that_grow_at_once_into_the_last_room_share_it_and_hurt_nobody(
    new_either_sandbox: NewEitherSandbox,
) -> None:
    """One of them may have to wait until the other has ended."""
    sandbox = new_either_sandbox(3072, 4500)
    sandbox.write("take.py", TAKE)
    sandbox.write("go", "")
    clients = [
        sandbox.start("run", "-q", "--memory", "64MiB..2GiB", "take.py", *["60"] * 16)
        for _ in range(2)
    ]
    for client in clients:
        out, _ = client.communicate()
        assert (client.returncode, out) == (0, "960\n")


def test_an_allocation_waits_through_the_death_of_its_broker(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox()
    sandbox.write("take.py", TAKE)
    client = sandbox.start("run", "-q", "--memory", "64MiB..2GiB", "take.py", "10", "go", "800")
    wait_for(lambda: (found := row(sandbox, 1)) and found["peak"], "it has begun")
    broker = sandbox.status()["pid"]
    os.kill(broker, signal.SIGSTOP)
    sandbox.write("go", "")
    (runs,) = sandbox.home.glob("runs/1.1")
    wait_for(lambda: list(runs.glob("dump-*")), "an allocation waits")
    os.kill(broker, signal.SIGKILL)
    out, _ = client.communicate()
    assert (client.returncode, out) == (0, "810\n")


STANDS_STILL = """
import json, os, threading, time
import numpy as np
import tensorflow as tf
from sublet.formats import shares

directory = json.loads(os.environ["SUBLET_LEASE"])["dir"]
kept, has_lock = [tf.ones([1])], threading.Event()

def change_shares():
    with shares.locked(directory, 10.0):
        has_lock.set()
        time.sleep(2)

array = np.ones(100 << 18, np.float32)
threading.Thread(target=change_shares).start()
has_lock.wait()
# Has Python's lock until it has its memory: that thread does not go on before.
kept.append(tf.constant(array))
print(len(kept[-1]) >> 18)
"""


def test_an_allocation_gets_its_raise_though_its_own_process_was_changing_the_shares(
    either_sandbox: Sandbox,
) -> None:
    sandbox = either_sandbox
    sandbox.write("still.py", STANDS_STILL)
    answer = sandbox.sublet("run", "--memory", "64MiB..1GiB", "still.py")
    assert (answer.returncode, answer.stdout) == (0, "100\n"), answer.stderr
    assert "sublet: lease 64.0 MiB, grew to " in answer.stderr


def test_a_range_upside_down_is_answered(sandbox: Sandbox) -> None:
    answer = sandbox.sublet("run", "--memory", "2GiB..1GiB", "nothing.py")
    assert answer.returncode == 2
    assert "upside down" in answer.stderr
    assert "Write 1GiB..2GiB." in answer.stderr
    sandbox.write("nothing.py", "")
    answer = sandbox.sublet("run", "--memory", "5GiB..6GiB", "nothing.py")
    assert "will never fit on cpu" in answer.stderr
    answer = sandbox.sublet("run", "--memory", "1GiB..", "nothing.py")
    assert "a range such as 2GiB..6GiB" in answer.stderr


GPU = """
import sys
import numpy as np
import tensorflow as tf

kept = []
for word in sys.argv[2:]:
    kept.append(tf.raw_ops.Empty(shape=[int(word) << 18], dtype=tf.float32))
if sys.argv[1] == "array":
    # Holds Python's lock while the copy waits for the card's memory.
    kept.append(tf.constant(np.ones(100 << 18, np.float32)))
print({one.device.rpartition(":")[0][-3:] for one in kept}, sum(map(len, kept)) >> 18)
"""

SESSION = """
import sys
import tensorflow as tf

tf1 = tf.compat.v1
tf1.disable_eager_execution()
with tf.device("GPU:0"):
    for word in sys.argv[1:]:
        tf1.get_variable(word, [int(word) << 18], initializer=tf1.zeros_initializer())
with tf1.Session() as session:
    session.run(tf1.global_variables_initializer())
    print("done")
"""


def test_a_lease_on_a_gpu_grows_while_the_card_has_room(
    new_machine: Callable[..., Machine], new_sandbox: NewSandbox
) -> None:
    """On TensorFlow's own GPU allocator, with a fence and without; the driver refuses nothing."""
    machine = new_machine(Gpu(uuid="GPU-a", total=4 << 30), context=256 << 20, computes=False)
    sandbox = new_sandbox(**machine.environ)
    sandbox.write("gpu.py", GPU)
    words = ("--memory", "64MiB..2GiB", "gpu.py", "array", "40", "300", "200")
    for fence in ("--no-fence", "--fence"):
        answer = sandbox.sublet("run", fence, *words, check=True)
        assert answer.stdout == "{'GPU'} 640\n"
        assert "lease 64.0 MiB, grew to " in answer.stderr
    assert not machine.refusals()
    refused = sandbox.sublet("run", "--memory", "128MiB", "gpu.py", "none", "40", "300")
    assert refused.returncode == 1
    assert "ResourceExhaustedError" in refused.stderr
    assert "lease  128 MiB on gpu0 (as asked)" in refused.stderr


def test_a_session_on_a_gpu_grows_too(
    new_machine: Callable[..., Machine], new_sandbox: NewSandbox
) -> None:
    machine = new_machine(Gpu(uuid="GPU-a", total=4 << 30), context=256 << 20, computes=False)
    sandbox = new_sandbox(**machine.environ)
    sandbox.write("session.py", SESSION)
    answer = sandbox.sublet("run", "--memory", "64MiB..2GiB", "session.py", "300", check=True)
    assert answer.stdout == "done\n"
    assert "lease 64.0 MiB, grew to " in answer.stderr
