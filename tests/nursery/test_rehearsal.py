"""A waiting worker has the memory ready that its program uses up to a first operation."""

import json
import mmap
from collections.abc import Callable

import pytest

from support.sandbox import Sandbox, wait_for

FIRST_OPERATION = """
import json, resource
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
import tensorflow as tf
(tf.constant(1.0) + 1.0).numpy()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
own = [line.split() for line in open("/proc/self/smaps_rollup") if "Private_Dirty" in line]
print(json.dumps([faults, int(own[0][1])]))
"""


def can_populate() -> bool:
    """Whether the kernel can be asked to copy pages ahead (Linux 5.14)."""
    with mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
        try:
            page.madvise(23)
        except OSError:
            return False
    return True


@pytest.mark.skipif(not can_populate(), reason="the kernel cannot populate pages")
def test_a_first_operation_finds_its_pages_and_copies_no_others(
    new_sandbox: Callable[..., Sandbox],
) -> None:
    sandbox = new_sandbox()
    sandbox.write("first.py", FIRST_OPERATION)

    def measure() -> list[int]:
        ran = sandbox.sublet("run", "--memory", "16MiB", "first.py", check=True)
        assert "started warm" in ran.stderr
        faults, own = json.loads(ran.stdout)
        return [faults, own]

    unprepared, _ = measure()
    assert unprepared > 1500
    faults, own = wait_for(
        lambda: found if (found := measure())[0] < 750 else None, "a worker with its pages"
    )
    # 29 MiB if it had copied what the nursery has no use for.
    assert own < 23 << 10, f"{own} KiB for {faults} faults"
