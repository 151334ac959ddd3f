"""GPUs, up to the driver: a stand-in NVML under the real broker, and the environment it gives.

What only a card can prove is not claimed here: TensorFlow finds no CUDA driver on this machine.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import standin
from support.box import Box, wait_for

NewBox = Callable[..., Box]
GIB = 1 << 30

DUMP = """
import json, os
from tensorflow.python.eager import context
import tensorflow as tf
names = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TF_FORCE_GPU_ALLOW_GROWTH",
         "TF_GPU_ALLOCATOR", "TF_CPU_ALLOCATOR_USE_BFC"]
print(json.dumps({name: os.environ.get(name) for name in names}))
"""


@pytest.fixture
def gpu_box(new_box: NewBox, tmp_path: Path) -> Box:
    """A home on a machine with two cards."""
    driver = standin.build(tmp_path)
    config = standin.write_config(
        tmp_path / "gpus.txt",
        [
            standin.Gpu(name="Card A", uuid="GPU-aaaa", total=16 * GIB),
            standin.Gpu(name="Card B", uuid="GPU-bbbb", total=8 * GIB),
        ],
    )
    return new_box(**standin.environment(driver, config), GPUS=str(config))


def test_a_program_is_given_one_card_by_its_uuid(gpu_box: Box) -> None:
    """The smaller one where it fits: the larger stays whole."""
    gpu_box.write("dump.py", DUMP)
    gpu_box.environ["TF_GPU_ALLOCATOR"] = "cuda_malloc_async"
    answer = gpu_box.sublet("run", "--memory", "2GiB", "--report", "r.json", "dump.py", check=True)
    assert json.loads(answer.stdout) == {
        "CUDA_VISIBLE_DEVICES": "GPU-bbbb",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_GPU_ALLOCATOR": None,
        "TF_CPU_ALLOCATOR_USE_BFC": None,
    }
    report = json.loads((gpu_box.work / "r.json").read_text())
    assert report["device"] == "gpu1"
    assert report["charge"] > report["lease"] == 2 * GIB


def test_strangers_on_a_card_are_respected(gpu_box: Box) -> None:
    """A job that fits only without them waits, and is told of them."""
    gpu_box.write("dump.py", DUMP)
    config = Path(gpu_box.environ["GPUS"])

    def cards(used: int) -> None:
        standin.write_config(
            config,
            [
                standin.Gpu(
                    name="Card A",
                    uuid="GPU-aaaa",
                    total=16 * GIB,
                    used=used,
                    processes=(standin.GpuProcess(1, used),) if used else (),
                ),
                standin.Gpu(name="Card B", uuid="GPU-bbbb", total=8 * GIB),
            ],
        )

    cards(12 * GIB)
    client = gpu_box.start("run", "--memory", "10GiB", "dump.py")
    (row,) = wait_for(
        lambda: [row for row in gpu_box.status()["waiting"] if "on gpu0" in row["reason"]],
        "it waits for room on the larger card",
    )
    assert "other programs 12.0 GiB" in row["reason"]
    cards(0)
    out, said = client.communicate(timeout=60)
    assert client.returncode == 0, said
    assert "GPU-aaaa" in out


def test_the_cpu_can_be_asked_for_beside_the_cards(gpu_box: Box) -> None:
    """And then no card is visible."""
    gpu_box.write("dump.py", DUMP)
    answer = gpu_box.sublet("run", "-q", "--device", "cpu", "dump.py", check=True)
    found = json.loads(answer.stdout)
    assert found["CUDA_VISIBLE_DEVICES"] == "-1"
    assert found["TF_CPU_ALLOCATOR_USE_BFC"] == "1"
    refused = gpu_box.sublet("run", "--memory", "20GiB", "dump.py")
    assert refused.returncode == 2
    assert "will never fit on gpu" in refused.stderr
