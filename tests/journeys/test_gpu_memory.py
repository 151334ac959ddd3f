"""Memory of cards: stock TensorFlow, its real GPU devices and allocators, on a stand-in driver.

An allocation that does not fit takes TensorFlow ten seconds, so programs that are to fail run at
the same time as others.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from standin import Gpu, Instance, Machine
from support.sandbox import PATIENCE, Sandbox, wait_for

NewSandbox = Callable[..., Sandbox]
NewMachine = Callable[..., Machine]
MIB, GIB = 1 << 20, 1 << 30

LOOK = """
import json
import tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
print(json.dumps([[one["device_name"], one["compute_capability"]] for one in details]))
"""

# Takes so many MiB, in pieces of 64; says how much it has got; ends when its input does.
HOLD = """
import json, os, sys
import tensorflow as tf
kept, failed = [], None
try:
    for _ in range(int(sys.argv[1]) // 64):
        kept.append(tf.fill([64 << 18], 1.0))
except tf.errors.OpError as error:
    failed = type(error).__name__
facts = {"pid": os.getpid(), "MiB": 64 * len(kept), "failed": failed}
facts["sees"] = os.environ.get("CUDA_VISIBLE_DEVICES")
facts["on"] = kept[0].device.rpartition("device:")[2] if kept else None
print(json.dumps(facts), flush=True)
sys.stdin.read()
"""

SESSIONS = """
import tensorflow as tf
tf1 = tf.compat.v1
tf1.disable_eager_execution()
with tf.device("GPU:0"):
    for name in ("one", "two"):
        tf1.get_variable(name, [64 << 18], initializer=tf1.zeros_initializer())
for config in (None, tf1.ConfigProto(allow_soft_placement=True)):
    with tf1.Session(config=config) as session:
        session.run(tf1.global_variables_initializer())
"""


COMPILED = """
import tensorflow as tf
matrix = tf.fill([1024, 1024], 0.5)
print(tf.function(lambda x: tf.tanh(matrix @ x), jit_compile=True)(matrix).shape)
"""


class Program:
    """A program that holds memory until the test lets it go."""

    def __init__(self, child: "subprocess.Popen[str]") -> None:
        self.child = child

    def facts(self) -> dict[str, Any]:
        """What it says once it has what it wants, or has failed to get it."""
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        assert line, self.child.communicate()[1]
        return json.loads(line)  # type: ignore[no-any-return]

    def end(self) -> int:
        self.child.communicate(timeout=PATIENCE)
        return self.child.returncode


Start = Callable[..., Program]


@contextmanager
def programs(sandbox: Sandbox) -> Iterator[tuple[Start, Start]]:
    """Starts HOLD, without a lease and with one. What still runs in the end is killed."""
    sandbox.write("hold.py", HOLD)
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with ExitStack() as started:

        def keep(child: "subprocess.Popen[str]") -> Program:
            started.enter_context(child)
            started.callback(child.kill)
            return Program(child)

        def plain(mib: int, **environ: str) -> Program:
            words = [sys.executable, "hold.py", str(mib)]
            env = sandbox.environ | environ
            return keep(subprocess.Popen(words, cwd=sandbox.work, env=env, text=True, **streams))  # type: ignore[call-overload]

        def leased(memory: str, mib: int) -> Program:
            return keep(sandbox.start("run", "--memory", memory, "hold.py", str(mib), **streams))

        yield plain, leased


@pytest.fixture
def card(new_machine: NewMachine) -> Machine:
    """A machine with one card of 8 GiB."""
    return new_machine(Gpu(uuid="GPU-a", total=8 * GIB), computes=False)


def test_the_stock_wheel_finds_the_cards_that_are_visible(
    new_machine: NewMachine, new_sandbox: NewSandbox
) -> None:
    """In the order of CUDA_VISIBLE_DEVICES, up to the first name that is not there."""
    machine = new_machine(
        Gpu(uuid="GPU-aaaa", name="Card A", compute=(8, 0)),
        Gpu(uuid="GPU-bbbb", name="Card B", compute=(9, 0)),
    )
    sandbox = new_sandbox(**machine.environ)
    sandbox.write("look.py", LOOK)

    def start(**environ: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "look.py"],
            cwd=sandbox.work,
            env=sandbox.environ | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    children = [start(), start(CUDA_VISIBLE_DEVICES="GPU-b,0,7,1")]
    found = [json.loads(child.communicate(timeout=PATIENCE)[0]) for child in children]
    first, second = ["Card A", [8, 0]], ["Card B", [9, 0]]
    assert found == [[first, second], [second, first]]


def test_a_second_plain_program_dies_beside_a_first_until_that_is_gone(
    card: Machine, new_sandbox: NewSandbox
) -> None:
    """What Sublet is there for: TensorFlow takes the card with the first tensor. And what is killed
    holds nothing any more."""
    with programs(new_sandbox(**card.environ)) as (plain, _):
        first = plain(64)
        assert first.facts()["on"] == "GPU:0"
        taken = card.held("GPU-a")[first.child.pid]
        assert taken > 6 * GIB
        second = plain(3 * 1024)
        failed = second.facts()
        assert (failed["failed"], failed["MiB"] < 2 * 1024) == ("ResourceExhaustedError", True)
        assert second.end() == 0
        first.child.send_signal(signal.SIGKILL)
        assert first.end() == -signal.SIGKILL
        third = plain(5 * 1024).facts()
        assert (third["failed"], third["MiB"]) == (None, 5 * 1024)


def test_leases_share_a_card_and_each_ends_exactly_at_its_ceiling(
    card: Machine, new_sandbox: NewSandbox
) -> None:
    """Two run side by side, a third waits for one of them, and the driver refuses nobody. The warm
    process from which they are forked never opens the card."""
    sandbox = new_sandbox(**card.environ)
    sandbox.warm()
    with programs(sandbox) as (_, leased):
        greedy, modest = leased("1GiB", 4096), leased("2GiB", 1024)
        held = modest.facts()
        assert (held["failed"], held["MiB"], held["on"]) == (None, 1024, "GPU:0")
        full = greedy.facts()
        # The scalar with which they are filled leaves no room for the sixteenth piece.
        assert (full["failed"], full["MiB"]) == ("ResourceExhaustedError", 1024 - 64)
        third = leased("3GiB", 2048)
        (row,) = wait_for(lambda: sandbox.status()["waiting"], "the third waits")
        assert "gpu0" in row["reason"]
        on_card = card.held("GPU-a")
        assert on_card[full["pid"]] == 1024 * MIB + 256 * MIB
        assert on_card[held["pid"]] >= 1024 * MIB + 256 * MIB
        assert greedy.end() == 0
        assert modest.end() == 0
        last = third.facts()
        assert (last["failed"], last["MiB"]) == (None, 2048)
        assert third.end() == 0
    assert card.refusals() == []
    assert {pid for pid, _ in card.log("cuInit")} == {held["pid"], full["pid"], last["pid"]}
    assert card.log("cuInit after a fork") == []


def test_a_lease_on_a_card_grows_ahead_of_need_as_xla_does_not_wait(
    new_machine: NewMachine, new_sandbox: NewSandbox
) -> None:
    """What it tries kernels out with is more than the lease has at first."""
    machine = new_machine(Gpu(uuid="GPU-a", total=4 * GIB), computes=False)
    sandbox = new_sandbox(**machine.environ)
    sandbox.write("compiled.py", COMPILED)
    words = ("run", "--memory", "32MiB..2GiB", "--report", "r.json", "compiled.py")
    sandbox.sublet(*words, check=True)
    report = json.loads((sandbox.work / "r.json").read_text())
    assert report["peak"] > 32 * MIB
    assert machine.refusals() == []


def test_leases_are_on_cards_and_instances_of_their_own(
    new_machine: NewMachine, new_sandbox: NewSandbox
) -> None:
    """Each program has one of them, and takes of that alone."""
    halves = tuple(Instance(slot, f"MIG-{name}", total=5 * GIB) for slot, name in enumerate("ab"))
    machine = new_machine(
        Gpu(uuid="GPU-aaaa", total=8 * GIB),
        Gpu(uuid="GPU-bbbb", total=8 * GIB, mig=True, instances=halves),
        computes=False,
    )
    with programs(new_sandbox(**machine.environ)) as (_, leased):
        started = [leased("3GiB", 1024) for _ in range(3)]
        found = {facts["sees"]: facts for facts in (program.facts() for program in started)}
        assert set(found) == {"GPU-aaaa", "MIG-a", "MIG-b"}
        for name, facts in found.items():
            assert (facts["failed"], facts["MiB"], facts["on"]) == (None, 1024, "GPU:0")
            assert list(machine.held(name)) == [facts["pid"]]
        assert [program.end() for program in started] == [0, 0, 0]
    assert machine.refusals() == []


def test_the_peak_of_tensorflow_1_sessions_on_a_card_is_measured(
    card: Machine, new_sandbox: NewSandbox
) -> None:
    """Though no eager context has started that could be asked."""
    sandbox = new_sandbox(**card.environ)
    sandbox.write("sessions.py", SESSIONS)
    sandbox.sublet("run", "--memory", "1GiB", "--report", "r.json", "sessions.py", check=True)
    report = json.loads((sandbox.work / "r.json").read_text())
    assert report["device"] == "gpu0"
    assert 128 * MIB <= report["peak"] < 160 * MIB
    assert len(card.log("context on")) == 1


def test_a_card_that_tensorflow_cannot_use_is_named_with_what_is_missing(
    new_machine: NewMachine, new_sandbox: NewSandbox
) -> None:
    """The program is bounded on the CPU, unless its user has named the card: then it ends. With
    a driver that is too old TensorFlow fails by itself, and Sublet says why."""
    machine = new_machine(Gpu(uuid="GPU-a", total=8 * GIB), missing=["libcudnn.so.9"])
    sandbox = new_sandbox(**machine.environ)
    sandbox.write("hold.py", HOLD)
    old = new_sandbox(**new_machine(Gpu(uuid="GPU-a", total=8 * GIB), cuda=11040).environ)
    old.write("hold.py", HOLD)
    options = {"stdin": subprocess.DEVNULL}
    beside = old.start("run", "hold.py", "64", **options)
    one = sandbox.start("run", "--memory", "256MiB", "hold.py", "1024", **options)
    other = sandbox.start(
        "run", "--memory", "256MiB", "--device", "gpu0", "hold.py", "64", **options
    )
    out, said = one.communicate(timeout=PATIENCE)
    facts = json.loads(out)
    assert (facts["on"], facts["failed"]) == ("CPU:0", "ResourceExhaustedError")
    assert 128 <= facts["MiB"] < 256
    assert "no GPU, and this lease is on gpu0: it cannot load libcudnn.so.9." in said
    assert "The program runs on the CPU, with at most 256 MiB. `pip install" in said
    out, said = other.communicate(timeout=PATIENCE)
    assert (out, other.returncode) == ("", 1)
    assert "RuntimeError: TensorFlow finds no GPU" in said
    assert machine.log("context") == []
    out, said = beside.communicate(timeout=PATIENCE)
    assert json.loads(out)["failed"] == "InternalError"
    assert "gpu0: the driver is too old: it knows CUDA 11.4, and TensorFlow needs 1" in said
