"""Programs on several cards, and jobs over several cards: the real broker and the real TensorFlow
on a machine with stand-in cards."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from standin import Gpu, Instance, Machine
from support.sandbox import PATIENCE, Sandbox, wait_for

NewSandbox = Callable[..., Sandbox]
NewMachine = Callable[..., Machine]
MIB, GIB = 1 << 20, 1 << 30
NO_PERMISSION, LOST = 4, 15
"""Of NVML."""

CARDS = (
    Gpu(name="Card A", uuid="GPU-aaaa", total=16 * GIB),
    Gpu(name="Card B", uuid="GPU-bbbb", total=8 * GIB),
    Gpu(name="Card C", uuid="GPU-cccc", total=8 * GIB, processors=4),
    Gpu(name="Card D", uuid="GPU-dddd", total=4 * GIB),
)

# Takes so many MiB of each card, in pieces of 64 MiB, says how much it got, and waits.
HOLD = """
import json, os, sys
import tensorflow as tf
kept, failed = [], None
wanted = map(int, sys.argv[1].split(","))
for gpu, mib in zip(tf.config.list_logical_devices("GPU"), wanted, strict=True):
    with tf.device(gpu.name):
        try:
            for _ in range(mib // 64):
                kept.append(tf.fill([64 << 18], 1.0))
        except tf.errors.ResourceExhaustedError:
            failed = gpu.name.rpartition(":")[2]
names = [one.device.rpartition(":")[2] for one in kept]
facts = {"MiB": [64 * names.count(name) for name in sorted(set(names))], "failed": failed}
facts["sees"] = os.environ["CUDA_VISIBLE_DEVICES"]
print(json.dumps(facts), flush=True)
sys.stdin.read()
"""

TRAIN = """
import json
import numpy as np
import tensorflow as tf
tf.keras.utils.set_random_seed(1)
x = np.random.rand(64, 4).astype("float32")
y = x @ np.float32([[1], [2], [-1], [0.5]])
strategy = tf.distribute.MirroredStrategy() if %r else tf.distribute.get_strategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
losses = model.fit(x, y, batch_size=32, epochs=3, verbose=0).history["loss"]
replicas = [
    [copy.numpy().ravel().tolist() for copy in strategy.experimental_local_results(one.value)]
    for one in model.trainable_variables
]
count = strategy.num_replicas_in_sync
print(json.dumps({"replicas": count, "losses": losses, "weights": replicas}))
"""


class Program:
    """A program that holds memory until the test lets it go."""

    def __init__(self, child: "subprocess.Popen[str]") -> None:
        self.child = child

    def facts(self) -> dict[str, Any]:
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        assert line, self.child.communicate()[1]
        return json.loads(line)  # type: ignore[no-any-return]

    def end(self) -> str:
        said = self.child.communicate(timeout=PATIENCE)[1]
        assert self.child.returncode == 0, said
        return str(said)


Start = Callable[..., Program]
Made = tuple[Machine, Sandbox]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts programs under leases; what still runs in the end is killed."""
    with ExitStack() as started:

        def run(sandbox: Sandbox, *words: str) -> Program:
            pipe = subprocess.PIPE
            child = sandbox.start("run", *words, stdin=pipe, stdout=pipe, stderr=pipe)
            started.enter_context(child)
            started.callback(child.kill)
            return Program(child)

        yield run


def _made(factory: pytest.TempPathFactory, *gpus: Gpu) -> Iterator[Made]:
    """A machine and a home on it, for all tests of this file that leave them as they were."""
    root = factory.mktemp("cards")
    machine = Machine(root / "machine", *gpus, computes=False)
    with (
        TemporaryDirectory(prefix="sublet-", ignore_cleanup_errors=True) as home,
        closing(Sandbox(Path(home) / "home", root / "work", **machine.environ)) as sandbox,
    ):
        sandbox.write("hold.py", HOLD)
        sandbox.write("see.py", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
        yield machine, sandbox


@pytest.fixture(scope="module")
def four(real_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Four cards of three sizes, one of them with few processors."""
    yield from _made(tmp_path_factory, *CARDS)


@pytest.fixture(scope="module")
def mixed(real_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Two whole cards, one in MIG mode, one that is lost, and one that we may not read."""
    mig = Gpu(uuid="GPU-mmmm", mig=True, instances=(Instance(0, "MIG-a"), Instance(1, "MIG-b")))
    lost, foreign = replace(CARDS[3], error=LOST), Gpu(uuid="GPU-ffff", error=NO_PERMISSION)
    yield from _made(tmp_path_factory, *CARDS[:2], mig, lost, foreign)


def test_a_job_with_two_gpus_has_a_lease_on_each_with_its_own_ceiling(
    four: Made, start: Start
) -> None:
    """Granted together, on the cards that it fills best; TensorFlow uses also the small one; the
    next such job waits until both are there, and is told what each has."""
    machine, box = four
    first = start(
        box, "--gpus", "2", "--memory", "5GiB", "--report", "r.json", "hold.py", "1024,8192"
    )
    got = first.facts()
    assert got["sees"] == "GPU-bbbb,GPU-cccc"
    assert got["failed"] == "1"
    assert got["MiB"][0] == 1024
    assert 5 * 1024 - 128 <= got["MiB"][1] <= 5 * 1024
    (row,) = box.status()["leases"]
    assert [card["device"] for card in row["cards"]] == ["gpu1", "gpu2"]
    for card, mib in zip(row["cards"], got["MiB"], strict=True):
        assert mib * MIB <= card["now"] < (mib + 128) * MIB
        assert card["lease"] == 5 * GIB
    leased = {one["device"]["id"]: one["leased"] for one in box.status()["devices"]}
    assert leased["gpu1"] == leased["gpu2"] > 5 * GIB
    assert leased["gpu0"] == leased["gpu3"] == 0
    shown = box.sublet("status", check=True).stdout
    assert re.search(r"^ +gpu2 +5.0 GiB +\S+ GiB +\S+ GiB +\S+ GiB *$", shown, re.MULTILINE)
    box.sublet("down", check=True)  # The next broker finds both leases again.
    again = {one["device"]["id"]: one["leased"] for one in box.status()["devices"]}
    assert again == leased
    second = start(box, "--gpus", "2", "--memory", "3GiB", "hold.py", "64,64")
    (waits,) = wait_for(
        lambda: [one for one in box.status()["waiting"] if "GPUs" in one["reason"]],
        "the second waits for two cards",
    )
    assert re.fullmatch(
        r"needs 2 GPUs with 3.0 GiB \+ \S+ \S+ for its process each; "
        r"gpu0 has 16.0 GiB of 16.0 GiB free; "
        r"gpu1 has \S+ GiB of 8.0 GiB free, held by #1 hold.py \S+ GiB; "
        r"gpu2 has \S+ GiB of 8.0 GiB free, held by #1 hold.py \S+ GiB; .*",
        waits["reason"],
    )
    said = first.end()
    assert "lease 5.0 GiB on each of gpu1, gpu2 · peak 1.0 GiB, 5.0 GiB" in said
    report = json.loads((box.work / "r.json").read_text())
    assert [(one["device"], one["lease"]) for one in report["cards"]] == [
        ("gpu1", 5 * GIB),
        ("gpu2", 5 * GIB),
    ]
    assert second.facts()["sees"] == "GPU-bbbb,GPU-cccc"
    second.end()
    assert not machine.refusals()


def test_a_mirrored_training_on_two_leased_cards_is_that_of_one(
    new_sandbox: NewSandbox, new_machine: NewMachine
) -> None:
    """The same losses, and the same weights on both cards, as on the CPU without a strategy."""
    sandbox = new_sandbox(**new_machine(*CARDS[:2]).environ)
    sandbox.write("mirrored.py", TRAIN % True)
    sandbox.write("plain.py", TRAIN % False)
    two = json.loads(sandbox.sublet("run", "--gpus", "2", "mirrored.py", check=True).stdout)
    one = json.loads(sandbox.sublet("run", "--device", "cpu", "plain.py", check=True).stdout)
    assert (two["replicas"], one["replicas"]) == (2, 1)
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-4)
    for (first, second), (alone,) in zip(two["weights"], one["weights"], strict=True):
        assert first == second
        assert first == pytest.approx(alone, rel=1e-4)


def test_jobs_are_packed_so_that_a_large_one_finds_a_whole_card(four: Made, start: Start) -> None:
    """Each on the card that it fills best; a list of devices leaves the choice among them."""
    _, box = four
    seen, small = [], []
    for _ in range(2):
        small.append(start(box, "--memory", "1GiB", "hold.py", "64"))
        seen.append(small[-1].facts()["sees"])
    assert seen == ["GPU-dddd", "GPU-bbbb"]
    large = start(box, "--memory", "14GiB", "hold.py", "64")
    assert large.facts()["sees"] == "GPU-aaaa"
    either = start(box, "--memory", "2GiB", "--device", "gpu0,gpu2", "hold.py", "64")
    assert either.facts()["sees"] == "GPU-cccc"
    for one in (*small, large, either):
        one.end()


def test_a_users_own_cuda_visible_devices_is_a_wish(four: Made) -> None:
    """It is honoured without a word, or answered; without GPUs it means the CPU."""
    _, box = four

    def run(visible: str, *words: str) -> tuple[int, str, str]:
        box.environ["CUDA_VISIBLE_DEVICES"] = visible
        try:
            done = box.sublet("run", "-q", "--memory", "1GiB", *words, "see.py")
        finally:
            del box.environ["CUDA_VISIBLE_DEVICES"]
        return done.returncode, done.stdout.strip(), " ".join(done.stderr.split())

    assert run("2") == (0, "GPU-cccc", "")
    assert run("GPU-a") == (0, "GPU-aaaa", "")
    assert run("") == run("NoDevFiles") == (0, "-1", "")
    assert run("3,0", "--gpus", "2") == (0, "GPU-dddd,GPU-aaaa", "")
    code, sees, said = run("0,1")
    assert (code, sees) == (0, "GPU-bbbb")
    assert "CUDA_VISIBLE_DEVICES=0,1 becomes GPU-bbbb" in said
    assert "`--gpus N` leases several" in said
    code, _, said = run("7")
    assert code == 2
    assert "CUDA_VISIBLE_DEVICES=7: There is no device 'gpu7'. Available: gpu0 (Card A" in said
    assert run("7", "--device", "gpu0")[:2] == (0, "GPU-aaaa")
    notebook = "import sublet; print(sublet.lease('1GiB').device)"
    box.write("notebook.py", notebook)
    for visible, device in (("", "cpu"), ("3", "gpu3")):
        box.environ["CUDA_VISIBLE_DEVICES"] = visible
        done = box.python("notebook.py")
        del box.environ["CUDA_VISIBLE_DEVICES"]
        assert (done.returncode, done.stdout.strip()) == (0, device), done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "0"], "gpus 0 is less than 1. To run without a GPU, name device cpu"),
        (["--gpus", "two"], "--gpus 'two' is not a whole number."),
        (["--gpus", "9"], "--gpus 9: there are 2 here. Available: gpu0, gpu1, gpu2.0, gpu2.1."),
        (["--gpus", "3"], "A program can have several whole GPUs, but one MIG instance only."),
        (["--gpus", "2", "--device", "gpu1"], "--gpus 2: --device names 1."),
        (["--gpus", "2", "--device", "cpu"], "--gpus 2: --device names 0."),
        (["--gpus", "2", "--memory", "12GiB"], "12.0 GiB will never fit on gpu1"),
        (["--device", "gpu0,gpu8"], "There is no device 'gpu8'."),
        (["--device", "GPU-mmmm"], "GPU-mmmm is in MIG mode: a program can have one of its"),
        (["--device", "gpu3"], "gpu3 cannot be used: the GPU has fallen off the bus"),
        (["--device", "gpu4"], "gpu4 cannot be used: the driver reports: "),
    ],
)
def test_what_cannot_be_is_refused_at_once(words: list[str], said: str, mixed: Made) -> None:
    refused = mixed[1].sublet("run", *words, "see.py")
    assert refused.returncode == 2
    assert said in " ".join(refused.stderr.split())


def test_several_gpus_where_there_is_none_are_refused(sandbox: Sandbox) -> None:
    sandbox.write("see.py", "")
    refused = sandbox.sublet("run", "--gpus", "2", "see.py")
    assert refused.returncode == 2
    assert "There is no GPU here. Available: cpu." in " ".join(refused.stderr.split())


def test_a_card_that_falls_off_the_bus_gets_nothing_new_until_it_is_back(
    four: Made, start: Start
) -> None:
    """What runs there keeps its lease until it ends; the broker says what is wrong, and so does
    the next one, which finds the card again, too."""
    machine, sandbox = four
    holder = start(sandbox, "--memory", "2GiB", "--device", "gpu1", "hold.py", "64")
    assert holder.facts()["sees"] == "GPU-bbbb"
    machine.has(CARDS[0], replace(CARDS[1], error=LOST), *CARDS[2:])
    waiter = start(sandbox, "--memory", "1GiB", "--device", "gpu1", "hold.py", "64")
    wait_for(
        lambda: [one for one in sandbox.status()["waiting"] if "fallen off" in one["reason"]],
        "it waits for the card",
    )
    (row,) = [one for one in sandbox.status()["devices"] if one["device"]["id"] == "gpu1"]
    assert (row["free"], row["others"]) == (0, 0)
    assert row["leased"] > 2 * GIB
    assert "gpu1 cannot be used: the GPU has fallen off the bus" in (
        sandbox.sublet("status", check=True).stdout
    )
    elsewhere = start(sandbox, "--memory", "1GiB", "hold.py", "64")
    assert elsewhere.facts()["sees"] == "GPU-dddd"
    sandbox.sublet("down", check=True)  # The next broker finds it lost.
    assert [one["device"] for one in sandbox.status()["leases"]] == ["gpu1", "gpu3"]
    holder.end()
    elsewhere.end()
    machine.has(*CARDS)
    assert waiter.facts()["sees"] == "GPU-bbbb"
    waiter.end()
