"""Which card a program gets, and what it is told of it: the real broker and the real TensorFlow, on
a machine with stand-in cards."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from standin import Gpu, GpuProcess, Instance, Machine
from support.sandbox import PATIENCE, Sandbox, wait_for
from support.servers import HALF, Server, place

NewSandbox = Callable[..., Sandbox]
NewMachine = Callable[..., Machine]
GIB = 1 << 30

DUMP = """
import json, os
from tensorflow.python.eager import context
import tensorflow as tf
names = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TF_FORCE_GPU_ALLOW_GROWTH",
         "TF_GPU_ALLOCATOR", "TF_CPU_ALLOCATOR_USE_BFC"]
print(json.dumps({name: os.environ.get(name) for name in names}))
"""


CARDS = (
    Gpu(name="Card A", uuid="GPU-aaaa", total=16 * GIB),
    Gpu(name="Card B", uuid="GPU-bbbb", total=8 * GIB),
)


@pytest.fixture
def machine(new_machine: NewMachine) -> Machine:
    return new_machine(*CARDS)


@pytest.fixture
def gpu_sandbox(new_sandbox: NewSandbox, machine: Machine) -> Sandbox:
    """A home on a machine with two cards."""
    return new_sandbox(**machine.environ)


def test_a_program_is_given_one_card_by_its_uuid(gpu_sandbox: Sandbox) -> None:
    """The smaller one where it fits: the larger stays whole."""
    gpu_sandbox.write("dump.py", DUMP)
    gpu_sandbox.environ["TF_GPU_ALLOCATOR"] = "cuda_malloc_async"
    answer = gpu_sandbox.sublet(
        "run", "--memory", "2GiB", "--report", "r.json", "dump.py", check=True
    )
    assert json.loads(answer.stdout) == {
        "CUDA_VISIBLE_DEVICES": "GPU-bbbb",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_GPU_ALLOCATOR": None,
        "TF_CPU_ALLOCATOR_USE_BFC": None,
    }
    report = json.loads((gpu_sandbox.work / "r.json").read_text())
    assert report["device"] == "gpu1"
    assert report["charge"] > report["lease"] == 2 * GIB


@pytest.mark.parametrize("processes", [(GpuProcess(1, 12 * GIB),), ()], ids=["lives", "crashed"])
def test_strangers_on_a_card_are_respected(
    processes: tuple[GpuProcess, ...], gpu_sandbox: Sandbox, machine: Machine
) -> None:
    """A job that fits only without them waits, and is seen of them: also without what a process has
    left that has crashed, and that the driver lists no more."""
    gpu_sandbox.write("dump.py", DUMP)
    taken = replace(CARDS[0], used=12 * GIB, processes=processes)
    machine.has(taken, CARDS[1])
    client = gpu_sandbox.start("run", "--memory", "10GiB", "dump.py")
    (row,) = wait_for(
        lambda: [row for row in gpu_sandbox.status()["waiting"] if "on gpu0" in row["reason"]],
        "it waits for room on the larger card",
    )
    assert "other programs 12.0 GiB" in row["reason"]
    machine.has(*CARDS)
    out, said = client.communicate(timeout=PATIENCE)
    assert client.returncode == 0, said
    assert "GPU-aaaa" in out


def test_the_cpu_can_be_asked_for_beside_the_cards(gpu_sandbox: Sandbox) -> None:
    """And then no card is visible."""
    gpu_sandbox.write("dump.py", DUMP)
    answer = gpu_sandbox.sublet("run", "-q", "--device", "cpu", "dump.py", check=True)
    found = json.loads(answer.stdout)
    assert found["CUDA_VISIBLE_DEVICES"] == "-1"
    assert found["TF_CPU_ALLOCATOR_USE_BFC"] == "1"
    refused = gpu_sandbox.sublet("run", "--memory", "20GiB", "dump.py")
    assert refused.returncode == 2
    assert "will never fit on gpu" in refused.stderr


POOL = """
import json, os, sys, time
import sublet, sublet.errors

def look(number=0, together=1):
    tensorflow = sys.modules.get("tensorflow.python.eager.context")
    with open("/proc/self/environ") as file:
        born = dict(pair.split("=", 1) for pair in file.read().split(chr(0)) if "=" in pair)
    open(f"here-{number}", "w").close()
    while sum(name.startswith("here-") for name in os.listdir(".")) < together: time.sleep(0.02)
    return {
        "sees": os.environ["CUDA_VISIBLE_DEVICES"],
        "born with": born.get("CUDA_VISIBLE_DEVICES"),
        "imported": tensorflow is not None,
        "started": getattr(getattr(tensorflow, "_context", None), "_initialized", False),
    }

def sees(**options):
    try:
        with sublet.Pool(1, "1GiB", **options) as pool:
            return pool.submit(look).result()["sees"]
    except sublet.errors.BadRequest as error:
        return str(error)

if __name__ == "__main__":
    print(json.dumps(eval(sys.argv[1])))
"""


def pooled(sandbox: Sandbox, expression: str) -> Any:
    """What this comes to in a program with a pool that runs without a lease itself."""
    sandbox.write("pool.py", POOL)
    done = sandbox.python("pool.py", expression)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_calls_of_a_pool_go_to_the_cards_they_are_meant_for(gpu_sandbox: Sandbox) -> None:
    """By index, by UUID, or in balance over all of them."""
    by = pooled(gpu_sandbox, "[sees(gpu=which) for which in (1, '0', 'GPU-aaaa', 'gpu1')]")
    assert by == ["GPU-bbbb", "GPU-aaaa", "GPU-aaaa", "GPU-bbbb"]
    nowhere = pooled(gpu_sandbox, "[sees(gpu=which) for which in (2, -1, True)]")
    assert nowhere == [
        "There is no device 'gpu2'. Available: gpu0 (Card A, GPU-aaaa), "
        "gpu1 (Card B, GPU-bbbb), cpu.",
        'gpu=-1 names no GPU. Write an index, a UUID, or "any"; `status` shows them.',
        'gpu=True names no GPU. Write an index, a UUID, or "any"; `status` shows them.',
    ]
    for name in gpu_sandbox.work.glob("here-*"):
        name.unlink()
    four = pooled(
        gpu_sandbox,
        "[row['sees'] for row in sublet.Pool(4, '1GiB', gpu='any').map(look, range(4), [4] * 4)]",
    )
    assert sorted(four) == ["GPU-aaaa", "GPU-aaaa", "GPU-bbbb", "GPU-bbbb"]


def test_a_worker_sees_its_card_before_tensorflow_could_look(gpu_sandbox: Sandbox) -> None:
    """A warm one before the runtime starts, a cold one before the import."""
    warm, cold = pooled(
        gpu_sandbox,
        "[sublet.Pool(1, '1GiB', gpu=1, cold=cold).submit(look).result() for cold in (0, 1)]",
    )
    assert warm["sees"] == cold["sees"] == cold["born with"] == "GPU-bbbb"
    assert not warm["started"]
    assert (cold["imported"], cold["started"]) == (False, False)


def test_an_instance_of_a_card_is_found_by_its_own_name_or_by_its_cards(
    new_sandbox: NewSandbox, new_machine: NewMachine
) -> None:
    """An index without an instance means any of them."""
    halves = (Instance(0, "MIG-a"), Instance(1, "MIG-b"))
    sandbox = new_sandbox(**new_machine(Gpu(uuid="GPU-a", mig=True, instances=halves)).environ)
    by = pooled(sandbox, "[sees(gpu=which) for which in ('0.1', 'MIG-a', 'GPU-a')]")
    assert by[:2] == ["MIG-b", "MIG-a"]
    assert by[2].startswith(
        "GPU-a is in MIG mode: a program can have one of its instances only. "
        "Name one of gpu0.0 (Standin A100 MIG 1g.5gb, MIG-a), gpu0.1 ("
    )
    for name in sandbox.work.glob("here-*"):
        name.unlink()
    two = pooled(
        sandbox, "[row['sees'] for row in sublet.Pool(2, '1GiB', gpu=0).map(look, (0, 1), (2, 2))]"
    )
    assert sorted(two) == ["MIG-a", "MIG-b"]


def test_a_pool_that_wants_a_gpu_where_there_is_none_is_told_so(sandbox: Sandbox) -> None:
    assert pooled(sandbox, "sees(gpu='any')") == "There is no GPU here. Available: cpu."


ENGINE = """
import json, os, sys
import numpy, sublet

def look(x):
    from sublet.inside import current_lease
    held = current_lease.current()
    names = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TF_FORCE_GPU_ALLOW_GROWTH"]
    seen = {name: os.environ.get(name) for name in names}
    text = json.dumps(seen | {"device": held.device, "MiB": held.ceiling_mib})
    return numpy.array([text.encode()], object)

if __name__ == "__main__":
    with sublet.Engine("1GiB", sys.argv[1]) as engine:
        engine.load("look", look)
        seen = json.loads(engine.run("look", numpy.float32([0]))[0])
        print(json.dumps([engine.device, seen]))
"""


def test_an_engine_is_on_the_card_it_is_made_for(gpu_sandbox: Sandbox) -> None:
    gpu_sandbox.write("engine.py", ENGINE)
    done = gpu_sandbox.python("engine.py", "gpu0")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        "gpu0",
        {
            "CUDA_VISIBLE_DEVICES": "GPU-aaaa",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            "device": "gpu0",
            "MiB": 1024,
        },
    ]


def test_a_server_has_an_engine_on_each_card_and_its_models_spread_over_them(
    gpu_sandbox: Sandbox, tmp_path: Path
) -> None:
    """The largest where the most room is; what says where it is to be is there."""
    models = tmp_path / "models"
    for name in ("half", "large", "small"):
        place(HALF, models, name, 1)
    with (models / "large" / "1" / "more").open("wb") as file:
        file.truncate(5 * GIB)
    config = gpu_sandbox.write(
        "models.config",
        f"""model_config_list {{
            config {{ name: "half" base_path: "{models}/half" sharing {{ device: "0" }} }}
            config {{ name: "large" base_path: "{models}/large" }}
            config {{ name: "small" base_path: "{models}/small" }}
        }}""",
    )
    server = Server(gpu_sandbox, "--model_config_file", str(config))
    try:
        answer = {one["model"]: one["devices"] for one in server.facts["models"]}
        assert answer == {"half": ["gpu0"], "large": ["gpu0"], "small": ["gpu1"]}
        leases = gpu_sandbox.status()["leases"]
        assert {row["device"]: row["lease"] >> 20 for row in leases} == {
            "gpu0": 2 * 5 * 1024 + 257,
            "gpu1": 512,
        }
        assert server.predict("small", [1.0]) == (200, {"predictions": [2.5]})
        table = gpu_sandbox.sublet("models", check=True).stdout.splitlines()
        assert {tuple(line.split()[:2]) for line in table[1:]} == {
            *(("half", "gpu0"), ("large", "gpu0"), ("small", "gpu1"))
        }
        assert max(map(len, table)) <= 80
    finally:
        assert server.close() == 0
