"""`sublet.ray` on a real Ray: what Ray sets aside is what a task can use."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from conftest import small_card
from support.sandbox import PATIENCE, Sandbox

START = """
import json, os, sys, time
import ray, sublet, sublet.ray
MiB = 2**20

def settled(*refs):
    '''Results; of a call that failed, the kind and the words of its error.'''
    found = []
    for ref in refs:
        try:
            found.append(ray.get(ref))
        except ray.exceptions.RayTaskError as failed:
            found.append([type(failed.cause).__name__, str(failed.cause)])
    return found

ray.init(num_cpus=4, num_gpus=GPUS, include_dashboard=False, log_to_driver=False,
         _temp_dir=os.environ["RAY_PLACE"])
"""


def run(sandbox: Sandbox, place: Path, gpus: int, text: str) -> Any:
    """What a driver has printed at its end, as JSON."""
    sandbox.environ |= {"RAY_PLACE": str(place), "HOME": str(place)}
    program = sandbox.write("driver.py", START.replace("GPUS", str(gpus)) + text)
    ran = sandbox.python(program, timeout=2 * PATIENCE)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.fixture
def place() -> Iterator[Path]:
    """For Ray's own files; its sockets need a short path."""
    with TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


TASKS = """
@sublet.ray.remote(memory=500 * MiB)
def total(amount, scale=1):
    import tensorflow as tf
    size = float(tf.reduce_sum(tf.ones([amount, 2**18])))
    return {"pid": os.getpid(), "lease": sublet.lease().memory, "total": size * scale}

@sublet.ray.remote(memory=500 * MiB)
def wrong():
    raise ValueError("mine")

@sublet.ray.remote
def unsized():
    return 1

@ray.remote(memory=600 * MiB)
class Trainer:
    def __init__(self):
        self.lease = sublet.ray.lease()
    def total(self, amount):
        import tensorflow as tf
        return self.lease.memory, float(tf.reduce_sum(tf.ones([amount, 2**18])))

try:
    sublet.ray.lease()
except sublet.BadRequest as error:
    outside = str(error)
trainer = Trainer.remote()
print(json.dumps({
    "outside": outside,
    "good": settled(total.remote(16), total.remote(16, scale=2)),
    "wrong": settled(wrong.remote(), unsized.remote(), total.options(memory=20 * MiB).remote(1)),
    "large": settled(total.remote(512)),
    "actor": settled(trainer.total.remote(16), trainer.total.remote(512)),
}))
"""


def test_tasks_and_actors_use_no_more_memory_than_ray_has_set_aside(
    sandbox: Sandbox, place: Path
) -> None:
    said = run(sandbox, place, 0, TASKS)
    assert "outside of a Ray task or actor" in said["outside"]
    first, second = said["good"]
    assert (first["total"], second["total"]) == (2.0**22, 2.0**23)
    assert first["pid"] != second["pid"]
    assert 0 < first["lease"] < 500 * 2**20  # The process itself is in it.
    own, unsized, small = said["wrong"]
    assert own == ["ValueError", "mine"]
    assert "memory=" in unsized[1]
    assert "the process itself takes" in small[1]
    assert said["large"][0][0] == "LeaseExceeded"
    (lease, total), exhausted = said["actor"]
    assert 0 < lease < 600 * 2**20
    assert total == 2.0**22
    assert "ResourceExhausted" in exhausted[0]


FRACTIONS = """
@sublet.ray.remote(num_gpus=0.25, num_cpus=0.5)
def meet(number):
    open(f"here{number}", "w").close()
    end = time.monotonic() + PATIENCE
    while not all(os.path.exists(f"here{one}") for one in range(4)):
        if time.monotonic() > end:
            raise TimeoutError("the four were never there at the same time")
        time.sleep(0.05)
    lease = sublet.lease()
    return lease.memory, lease.device

print(json.dumps(settled(*(meet.remote(number) for number in range(4)))))
"""


def test_four_quarters_of_a_gpu_are_leased_at_the_same_time(
    new_sandbox: Callable[..., Sandbox], tmp_path: Path, place: Path
) -> None:
    machine = small_card(tmp_path / "card", 8 << 30)
    sandbox = new_sandbox(**machine.environ)
    held = run(sandbox, place, 1, FRACTIONS.replace("PATIENCE", str(PATIENCE)))
    assert [device for _, device in held] == ["gpu0"] * 4
    # A quarter of 8 GiB, less the 1050 MiB that a process costs there.
    assert {memory >> 20 for memory, _ in held} == {2048 - 1050}
    assert machine.refusals() == []


def test_without_ray_it_says_what_to_install(sandbox: Sandbox) -> None:
    hide = "import sys; sys.modules['ray'] = None; import sublet.ray; sublet.ray.lease()"
    ran = sandbox.python("-c", hide)
    assert ran.returncode == 1
    assert "pip install 'sublet[ray]'" in ran.stderr
