"""The limit of a real pool, moved while programs use it."""

import ctypes
import dataclasses
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from sublet.formats import attempt_files, shares
from sublet.formats.lease import MIB, LeaseTerms
from sublet.formats.lease_environment import leased_environment
from sublet.inside import allocator, pool_limit
from support.leased import PLAIN, cpu_lease
from support.sandbox import wait_for

pytestmark = pytest.mark.slow

BEGIN = """
    import sys, tensorflow as tf
    tf.zeros([1])
    (measure,) = [module for name, module in sys.modules.items() if name.endswith("inside.measure")]
    ceiling = measure.writer().ceiling
    def say(*words):
        print(*words, flush=True)
"""


def start(directory: Path, program: str, mib: int = 64, most: int = 1024) -> subprocess.Popen[str]:
    """A program under an elastic lease of so many MiB."""
    environ, _ = leased_environment(elastic(directory, mib, most), PLAIN)
    text = textwrap.dedent(BEGIN) + textwrap.dedent(program)
    return subprocess.Popen(
        [sys.executable, "-c", text],
        env={**environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )


def elastic(directory: Path, mib: int = 64, most: int = 1024) -> LeaseTerms:
    return dataclasses.replace(cpu_lease(directory, mib), most=most * MIB)


def ended(process: subprocess.Popen[str]) -> list[str]:
    out, _ = process.communicate()
    assert process.returncode == 0
    return out.splitlines()


def dumps(directory: Path) -> list[str]:
    return [name for name in os.listdir(directory) if attempt_files.dumped_by(name)]


def share(directory: Path, pid: int, below: int) -> shares.Share | None:
    """The share of a process, when it has fallen below so many MiB."""
    found = [one for one in shares.read(str(directory)) if one.pid == pid]
    return found[0] if found and found[0].limit < below * MIB else None


def raise_when_it_waits(directory: Path, limit: int) -> None:
    """Be the broker: wait for the allocator's file, and raise the limit through the FIFO. The
    program lives on, and removes the file."""
    names = wait_for(lambda: dumps(directory), "an allocation that waits")
    raise_for(directory, names[0], limit)
    wait_for(lambda: names[0] not in dumps(directory), "an allocation that has what it needs")


def raise_for(directory: Path, name: str, limit: int) -> None:
    """Raise the limit of the process that has left this file."""
    pid = attempt_files.dumped_by(name)
    assert pid is not None
    with shares.locked(str(directory), 10.0, stopped=(pid,)) as table:
        fifos = attempt_files.raise_fifos(str(directory), pid)
        mine = table.get(pid)
        assert fifos
        assert mine is not None
        table.put(mine._replace(limit=limit))
        attempt_files.write_ceiling(str(directory), limit)
        attempt_files.send_limit(fifos[0], limit)


@pytest.mark.parametrize(
    "allocation",
    [
        "tf.ones([100 << 18])",
        # These hold Python's lock while they wait, and crash if they get nothing.
        "tf.constant(array)",
        "tf.Variable(array)",
        "next(iter(tf.data.Dataset.from_tensor_slices(array).batch(1 << 30)))",
        # And a session has no eager context.
        "tf.compat.v1.Session(graph=graph).run(ones)",
    ],
)
def test_an_allocation_that_waits_succeeds_when_the_limit_is_raised(
    tmp_path: Path, allocation: str
) -> None:
    program = f"""
        import numpy as np
        array = np.ones([100, 1 << 18], np.float32)
        with tf.Graph().as_default() as graph:
            ones = tf.ones([100 << 18])
        found = {allocation}
        say(int(np.sum(np.asarray(found))))
    """
    process = start(tmp_path, program)
    answered: set[str] = set()
    while process.poll() is None:  # It may give back, and need it again.
        for name in {*dumps(tmp_path)} - answered:
            answered.add(name)
            raise_for(tmp_path, name, 900 * MIB)
        time.sleep(0.01)
    assert answered
    assert ended(process) == [str(100 << 18)]


def test_what_an_allocation_did_not_need_is_given_back_and_noted(tmp_path: Path) -> None:
    program = """
        tensor = tf.ones([100 << 18])
        sys.stdin.read()
        say(ceiling.limit // 2**20, ceiling._pool.limit // 2**20, ceiling._pool.pool // 2**20)
    """
    process = start(tmp_path, program)
    raise_when_it_waits(tmp_path, 900 * MIB)
    noted = wait_for(lambda: share(tmp_path, process.pid, below=900), "its share")
    assert 100 * MIB <= noted.limit < 400 * MIB
    assert dumps(tmp_path) == []  # It succeeded: nothing looks like a failure.
    (line,) = ended(process)
    limit = noted.limit // MIB
    assert line == f"{limit} {limit} {limit}"


def test_a_ceiling_that_is_lowered_holds_but_not_below_what_the_pool_has_taken(
    tmp_path: Path,
) -> None:
    program = """
        small = tf.ones([64 << 18])
        say("ready")
        sys.stdin.readline()
        try:
            tf.ones([600 << 18])
        except tf.errors.ResourceExhaustedError:
            say("refused")
        say(len(tf.ones([64 << 18])))
    """
    process = start(tmp_path, program, mib=2048, most=4096)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    attempt_files.write_ceiling(str(tmp_path), 400 * MIB)
    noted = wait_for(lambda: share(tmp_path, process.pid, below=2048), "its share")
    assert 128 * MIB <= noted.limit <= 512 * MIB
    out, _ = process.communicate("\n")
    assert out.splitlines() == ["refused", str(64 << 18)]


def test_a_pool_that_is_not_as_expected_has_no_limit_that_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a version of TensorFlow whose allocator looks different."""
    lease = elastic(tmp_path)
    made = (ctypes.c_uint64 * 320)()
    address = ctypes.addressof(made)
    words = memoryview(made).cast("B").cast("Q")
    monkeypatch.setattr(allocator, "cpu_pool", lambda: address)
    monkeypatch.setattr(allocator, "handle_and_devices", lambda lease: (None, ["CPU:0"]))
    monkeypatch.setattr(pool_limit, "Bells", lambda: None)
    monkeypatch.setattr(allocator, "usage", lambda lease: (4096, 8192))

    def find() -> bool:
        return pool_limit.PoolLimit.find(lease, lease.ceiling) is not None

    assert not find()
    words[4] = lease.ceiling
    for at, word in enumerate([4096, 8192, 4096, lease.ceiling, 1], 100):
        words[at] = word
    words[110], words[111] = 64 * MIB, 1
    assert find()
    for at, wrong in ((4, 0), (5, lease.ceiling), (100, 1), (103, 0), (104, 0), (110, 100 * MIB)):
        before = words[at]
        words[at] = wrong
        assert not find()
        words[at] = before
    words[200:212] = words[100:112]
    assert not find()  # Two places look alike: neither is believed.


def test_memory_that_is_not_mapped_is_an_error_and_no_crash() -> None:
    with pytest.raises(OSError, match="Input/output error"):
        pool_limit._read(8)


def test_a_program_that_closes_all_descriptors_can_still_grow_once_per_fifo(
    tmp_path: Path,
) -> None:
    """Reads that are under way keep their files open; what takes the numbers over is not read."""
    program = """
        import os
        os.closerange(3, 4096)
        pipes = [os.pipe() for _ in range(900)]
        for reader, writer in pipes:
            os.write(writer, b"mine mine mine")
        say(len(tf.ones([100 << 18])))
        say(all(os.read(reader, 100) == b"mine mine mine" for reader, writer in pipes))
    """
    process = start(tmp_path, program)
    names = wait_for(lambda: dumps(tmp_path), "an allocation that waits")
    raise_for(tmp_path, names[0], 900 * MIB)
    assert ended(process) == [str(100 << 18), "True"]


def test_a_pool_takes_its_large_region_when_the_small_one_does_not_do(tmp_path: Path) -> None:
    """In one piece: what it has not taken by then can go to other processes of the program."""
    program = """
        say(ceiling._pool.pool // 2**20)
        tensor = tf.ones([9 << 18])
        say(ceiling._pool.pool // 2**20)
        large = tf.ones([45 << 18])
        say(ceiling.limit // 2**20)
    """
    first, second, limit = map(int, ended(start(tmp_path, program, most=64)))
    assert first < 16
    assert second == limit == 64


def test_a_child_that_was_forked_with_a_pool_cannot_take_more(tmp_path: Path) -> None:
    program = """
        import os
        before = ceiling._pool.limit
        if not (child := os.fork()):
            os._exit(0 if ceiling._pool.limit < 16 << 20 else 1)
        say(os.waitpid(child, 0)[1], ceiling._pool.limit == before)
    """
    assert ended(start(tmp_path, program)) == ["0 True"]
